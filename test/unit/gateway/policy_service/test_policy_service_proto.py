# SPDX-License-Identifier: Apache-2.0
"""The proto file and its reader, reflection and health."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
import pytest
from support.gateway.policy_service_rig import policy_service_rig
from support.gateway.robot_client_rig import soon
from support.paths import REPOSITORY

from lerobot_serve.contract.services.policy_service import (
    DESCRIBED,
    described,
    ENUMS,
    SERVICE,
)
from lerobot_serve.gateway.callers.predictions import PredictionError, Status

PROTO = REPOSITORY / 'lerobot_serve' / 'contract' / 'services' / 'policy_service.proto'
# of the first published version: a change breaks its clients
FIRST_VERSION = {
    ('Observation', 'episode_id'): (1, Field.TYPE_STRING, Field.LABEL_OPTIONAL),
    ('Observation', 'features'): (2, Field.TYPE_FLOAT, Field.LABEL_REPEATED),
    ('Observation', 'step_index'): (3, Field.TYPE_INT64, Field.LABEL_OPTIONAL),
    ('Action', 'continuous_actions'): (1, Field.TYPE_FLOAT, Field.LABEL_REPEATED),
    ('Action', 'discrete_action'): (2, Field.TYPE_INT32, Field.LABEL_OPTIONAL),
    ('Action', 'value_estimate'): (3, Field.TYPE_FLOAT, Field.LABEL_OPTIONAL),
    ('Action', 'model_version'): (4, Field.TYPE_STRING, Field.LABEL_OPTIONAL),
}


def test_the_first_version_is_kept():
    found = {
        (message.name, field.name): (field.number, field.type, field.label)
        for message in DESCRIBED.message_type
        for field in message.field
    }
    assert found.items() >= FIRST_VERSION.items()
    (observation,) = (each for each in DESCRIBED.message_type if each.name == 'Observation')
    assert [each.start for each in observation.reserved_range] == [4]


@pytest.mark.parametrize(
    'changed',
    ['optional int32 a = 50;', 'map<string, int32> a = 50;', 'oneof a { int32 b = 50; }'],
)
def test_what_the_reader_does_not_know_is_refused(changed):
    text = PROTO.read_text()
    assert described(text) == DESCRIBED
    with pytest.raises(ValueError, match='which is not read'):
        described(text.replace('reserved 4;', changed))


def test_every_status_has_a_number():
    assert {status.name for status in Status} | {'OK'} == set(ENUMS['Status'])


def test_protoc_agrees(tmp_path):
    protoc = pytest.importorskip('grpc_tools.protoc')
    out = tmp_path / 'set'
    arguments = ['protoc', f'-I{REPOSITORY}', f'--descriptor_set_out={out}', str(PROTO)]
    assert protoc.main(arguments) == 0
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    (theirs,) = FileDescriptorSet.FromString(out.read_bytes()).file
    for file in (theirs, ours := described(PROTO.read_text())):
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
        assert got == DESCRIBED


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
