# SPDX-License-Identifier: Apache-2.0
"""
The messages of gateway/policy_service/policy_service.proto, for the gateway and for its clients.
Built from tables: an installation needs no protoc, and the pool is one of its own, in which no
other rl.policy.v1 can clash. Needs protobuf, which not every installation has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE = 'rl.policy.v1'
SERVICE = f'{PACKAGE}.PolicyService'
FILE = 'lerobot_serve/gateway/policy_service/policy_service.proto'
SCALARS = {
    'float': Field.TYPE_FLOAT,
    'int64': Field.TYPE_INT64,
    'int32': Field.TYPE_INT32,
    'uint32': Field.TYPE_UINT32,
    'bool': Field.TYPE_BOOL,
    'string': Field.TYPE_STRING,
    'bytes': Field.TYPE_BYTES,
}
ENUMS: Mapping[str, Mapping[str, int]] = {
    'Encoding': {'RGB8': 0, 'JPEG': 1},
    'Status': {
        'OK': 0,
        'INVALID': 1,
        'TOO_LATE': 2,
        'SUPERSEDED': 3,
        'OVERLOADED': 4,
        'UNAVAILABLE': 5,
        'NOT_FINITE': 6,
        'UNAUTHORIZED': 7,
        'FAILED': 8,
        'QUOTA': 9,
    },
}
# message -> field -> (number, type); a type in brackets is repeated
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    'Observation': {
        'episode_id': (1, 'string'),
        'features': (2, '[float]'),
        'step_index': (3, 'int64'),
        'images': (5, '[Image]'),
        'task': (6, 'string'),
        'inference_delay_steps': (7, 'int32'),
        'timeout_ms': (8, 'int32'),
        'session': (9, 'Session'),
    },
    'Image': {
        'name': (1, 'string'),
        'data': (2, 'bytes'),
        'height': (3, 'uint32'),
        'width': (4, 'uint32'),
        'encoding': (5, 'Encoding'),
    },
    'Action': {
        'continuous_actions': (1, '[float]'),
        'discrete_action': (2, 'int32'),
        'value_estimate': (3, 'float'),
        'model_version': (4, 'string'),
        'step_index': (5, 'int64'),
        'chunk': (6, '[float]'),
        'chunk_steps': (7, 'int32'),
        'slot': (8, 'string'),
        'inference_ms': (9, 'float'),
        'queue_wait_ms': (10, 'float'),
        'policy_changed': (11, 'bool'),
        'status': (12, 'Status'),
        'text': (13, 'string'),
        'processing_ms': (14, 'float'),
        'superseded': (15, 'uint32'),
        'refusal': (16, 'int32'),
        'policy': (17, 'Policy'),
        'retry_after_s': (18, 'float'),
    },
    'Session': {
        'state_names': (1, '[string]'),
        'action_names': (2, '[string]'),
        'cameras': (3, '[Camera]'),
        'fps': (4, 'float'),
        'policy': (5, 'string'),
        'task': (6, 'string'),
        'tags': (7, '[Tag]'),
    },
    'Camera': {
        'name': (1, 'string'),
        'height': (2, 'uint32'),
        'width': (3, 'uint32'),
        'channels': (4, 'uint32'),
    },
    'Tag': {'key': (1, 'string'), 'value': (2, 'string')},
    'DescribeRequest': {},
    'Policy': {
        'id': (1, 'string'),
        'fingerprint': (2, 'string'),
        'policy_type': (3, 'string'),
        'state_names': (4, '[string]'),
        'action_names': (5, '[string]'),
        'cameras': (6, '[Camera]'),
        'chunk_steps': (7, 'uint32'),
        'control_hz': (8, 'float'),
        'observation_steps': (9, 'uint32'),
        'default_task': (10, 'string'),
        'task_pinned': (11, 'bool'),
        'text': (12, 'string'),
        'client_id': (13, 'string'),
        'warnings': (14, '[string]'),
    },
}
RESERVED = {'Observation': 4}
# method -> request, reply, and whether both are streams
METHODS: Mapping[str, tuple[str, str, bool]] = {
    'Predict': ('Observation', 'Action', False),
    'PredictStream': ('Observation', 'Action', True),
    'Describe': ('DescribeRequest', 'Policy', False),
}


def described() -> FileDescriptorProto:
    """Return what protoc makes of policy_service.proto."""
    file = FileDescriptorProto(name=FILE, package=PACKAGE, syntax='proto3')
    for name, fields in MESSAGES.items():
        add_message(file.message_type.add(name=name), fields, RESERVED.get(name))
    for name, values in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    service = file.service.add(name='PolicyService')
    for method, (request, reply, is_stream) in METHODS.items():
        types = {'input_type': f'.{PACKAGE}.{request}', 'output_type': f'.{PACKAGE}.{reply}'}
        streams = {'client_streaming': True, 'server_streaming': True} if is_stream else {}
        service.method.add(name=method, **types, **streams)
    return file


def add_message(message: Any, fields: Mapping[str, tuple[int, str]], reserved: int | None) -> None:
    for name, (number, kind) in fields.items():
        of = kind.strip('[]')
        label = Field.LABEL_REPEATED if kind.startswith('[') else Field.LABEL_OPTIONAL
        field = message.field.add(name=name, number=number, label=label)
        if of in SCALARS:
            field.type = SCALARS[of]
        else:
            field.type = Field.TYPE_ENUM if of in ENUMS else Field.TYPE_MESSAGE
            field.type_name = f'.{PACKAGE}.{of}'
    if reserved:
        message.reserved_range.add(start=reserved, end=reserved + 1)


POOL = DescriptorPool()
POOL.Add(described())


def message_class(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f'{PACKAGE}.{name}'))


Observation, Image, Action = (message_class(name) for name in ('Observation', 'Image', 'Action'))
Session, Camera, Tag = (message_class(name) for name in ('Session', 'Camera', 'Tag'))
DescribeRequest, Policy = (message_class(name) for name in ('DescribeRequest', 'Policy'))
