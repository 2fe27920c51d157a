# SPDX-License-Identifier: Apache-2.0
"""The proto file against the tables, reflection and health."""

from __future__ import annotations

import re

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
import pytest
from support.gateway.policy_service_rig import policy_service_rig
from support.gateway.robot_client_rig import soon
from support.paths import REPOSITORY

from lerobot_serve.contract.services.policy_service import (
    described,
    ENUMS,
    MESSAGES,
    METHODS,
    PACKAGE,
    RESERVED,
    SERVICE,
)
from lerobot_serve.gateway.callers.predictions import PredictionError, Status

PROTO = REPOSITORY / 'lerobot_serve' / 'gateway' / 'policy_service' / 'policy_service.proto'
# of the first published version: a change breaks its clients
FIRST_VERSION = {
    'Observation': {
        'episode_id': (1, 'string'),
        'features': (2, '[float]'),
        'step_index': (3, 'int64'),
    },
    'Action': {
        'continuous_actions': (1, '[float]'),
        'discrete_action': (2, 'int32'),
        'value_estimate': (3, 'float'),
        'model_version': (4, 'string'),
    },
}


def blocks(kind: str) -> dict[str, str]:
    text = re.sub(r'//.*', '', PROTO.read_text())
    return dict(re.findall(rf'\b{kind} (\w+) {{(.*?)\n}}', text, re.S))


def test_the_proto_file_says_what_the_tables_say():
    found = {
        name: {
            field: (int(number), f'[{of}]' if repeated else of)
            for repeated, of, field, number in re.findall(
                r'(repeated )?(\w+) (\w+) = (\d+);', body
            )
        }
        for name, body in blocks('message').items()
    }
    assert found == MESSAGES
    enums = {
        name: {value: int(number) for value, number in re.findall(r'(\w+) = (\d+);', body)}
        for name, body in blocks('enum').items()
    }
    assert enums == ENUMS
    reserved = re.findall(r'reserved (\d+);', blocks('message')['Observation'])
    assert [int(number) for number in reserved] == [RESERVED['Observation']]
    assert f'package {PACKAGE};' in PROTO.read_text()
    methods = re.findall(
        r'rpc (\w+) \((stream )?(\w+)\) returns \((stream )?(\w+)\)',
        blocks('service')['PolicyService'],
    )
    assert {name: (a, b, bool(taken)) for name, taken, a, _, b in methods} == METHODS
    assert all(taken == given for _, taken, _, given, _ in methods)


def test_the_first_version_is_kept():
    for name, fields in FIRST_VERSION.items():
        assert MESSAGES[name].items() >= fields.items()


def test_every_status_has_a_number():
    assert {status.name for status in Status} | {'OK'} == set(ENUMS['Status'])


def test_protoc_agrees(tmp_path):
    protoc = pytest.importorskip('grpc_tools.protoc')
    out = tmp_path / 'set'
    arguments = ['protoc', f'-I{REPOSITORY}', f'--descriptor_set_out={out}', str(PROTO)]
    assert protoc.main(arguments) == 0
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    (theirs,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for file in (theirs, ours := described()):
        for message in file.message_type:
            for field in message.field:
                field.ClearField('json_name')
    assert theirs == ours


@pytest.mark.usefixtures('grpc_thread')
async def test_reflection_lists_the_service_and_its_file():
    async with policy_service_rig() as rig:
        stub = reflection_pb2_grpc.ServerReflectionStub(rig.channel())
        asked = reflection_pb2.ServerReflectionRequest
        call = stub.ServerReflectionInfo(
            iter([asked(list_services=''), asked(file_containing_symbol=SERVICE)])
        )
        listed, file = [answer async for answer in call]
        names = {each.name for each in listed.list_services_response.service}
        assert names >= {SERVICE, 'grpc.health.v1.Health'}
        (data,) = file.file_descriptor_response.file_descriptor_proto
        got = FileDescriptorProto.FromString(data)
        assert {message.name for message in got.message_type} == set(MESSAGES)


@pytest.mark.usefixtures('grpc_thread')
async def test_health_follows_the_policy():
    answers = health_pb2.HealthCheckResponse
    async with policy_service_rig() as rig:
        rig.door._health._period_s = 0.01
        stub = health_pb2_grpc.HealthStub(rig.channel())

        async def status(service: str) -> int:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            return answer.status

        assert [await status(each) for each in ('', SERVICE)] == [answers.SERVING] * 2
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watch.read()).status == answers.SERVING
        rig.upstream.fail_with = PredictionError(Status.UNAVAILABLE, 'no router')
        assert (await watch.read()).status == answers.NOT_SERVING
        rig.upstream.fail_with = None
        assert (await watch.read()).status == answers.SERVING
        watch.cancel()
        await soon(watch.done)
