# SPDX-License-Identifier: Apache-2.0
"""
The messages of policy_service.proto, for the gateway and for its clients. The file is read here:
an installation needs no protoc, and the pool is one of its own, in which no other rl.policy.v1 can
clash. Needs protobuf, which not every installation has.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
import re
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from msgspec import to_builtins

from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.types import KeyValue

PACKAGE = 'rl.policy.v1'
SERVICE = f'{PACKAGE}.PolicyService'
FILE = 'lerobot_serve/contract/services/policy_service.proto'
HEAD = f'syntax = "proto3"; package {PACKAGE};'
SCALARS = {
    'float': Field.TYPE_FLOAT,
    'int64': Field.TYPE_INT64,
    'int32': Field.TYPE_INT32,
    'uint32': Field.TYPE_UINT32,
    'bool': Field.TYPE_BOOL,
    'string': Field.TYPE_STRING,
    'bytes': Field.TYPE_BYTES,
}
BLOCK = re.compile(r'(message|enum|service) (\w+) \{(.*?)\}')
FIELD = re.compile(r'(?:reserved (\d+)|(repeated )?(\w+) (\w+) = (\d+));')
VALUE = re.compile(r'(\w+) = (\d+);')
RPC = re.compile(r'rpc (\w+) \((stream )?(\w+)\) returns \((stream )?(\w+)\);')
PARTS = {'message': FIELD, 'enum': VALUE, 'service': RPC}


def described(text: str) -> FileDescriptorProto:
    """Return what protoc makes of such a file. Raises ValueError for what is not read here."""
    text = ' '.join(re.sub('//.*', '', text).split())
    file = FileDescriptorProto(name=FILE, package=PACKAGE, syntax='proto3')
    blocks = BLOCK.findall(text)
    enums = [name for kind, name, _ in blocks if kind == 'enum']
    for kind, name, body in blocks:
        if kind == 'enum':
            add_values(file.enum_type.add(name=name), body)
        elif kind == 'message':
            add_fields(file.message_type.add(name=name), body, enums)
        else:
            add_methods(file.service.add(name=name), body)
    left = [BLOCK.sub('', text).removeprefix(HEAD)]
    left += [PARTS[kind].sub('', body) for kind, _, body in blocks]
    if rest := ' '.join(left).strip():
        raise ValueError(f'{FILE} has {rest[:80]!r}, which is not read')
    return file


def add_values(enum: Any, body: str) -> None:
    for name, number in VALUE.findall(body):
        enum.value.add(name=name, number=int(number))


def add_fields(message: Any, body: str, enums: list[str]) -> None:
    for reserved, repeated, kind, name, number in FIELD.findall(body):
        if reserved:
            message.reserved_range.add(start=int(reserved), end=int(reserved) + 1)
            continue
        label = Field.LABEL_REPEATED if repeated else Field.LABEL_OPTIONAL
        field = message.field.add(name=name, number=int(number), label=label)
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type = Field.TYPE_ENUM if kind in enums else Field.TYPE_MESSAGE
            field.type_name = f'.{PACKAGE}.{kind}'


def add_methods(service: Any, body: str) -> None:
    for name, taken, request, given, reply in RPC.findall(body):
        types = {'input_type': f'.{PACKAGE}.{request}', 'output_type': f'.{PACKAGE}.{reply}'}
        # unset, as protoc leaves it
        streams = {'client_streaming': True} if taken else {}
        streams |= {'server_streaming': True} if given else {}
        service.method.add(name=name, **types, **streams)


DESCRIBED = described((resources.files(__package__) / 'policy_service.proto').read_text('utf-8'))
POOL = DescriptorPool()
POOL.Add(DESCRIBED)
ENUMS: Mapping[str, Mapping[str, int]] = {
    enum.name: {value.name: value.number for value in enum.value} for enum in DESCRIBED.enum_type
}


def message_class(name: str) -> Any:
    return GetMessageClass(POOL.FindMessageTypeByName(f'{PACKAGE}.{name}'))


Observation, Image, Action = (message_class(name) for name in ('Observation', 'Image', 'Action'))
Session, Camera, Tag = (message_class(name) for name in ('Session', 'Camera', 'Tag'))
DescribeRequest, Policy = (message_class(name) for name in ('DescribeRequest', 'Policy'))

# message -> the record with the same fields
RECORDS: Mapping[str, type[Any]] = {
    'Session': OpenSessionRequest,
    'Camera': CameraSpec,
    'Tag': KeyValue,
}


def session_of(terms: OpenSessionRequest) -> Any:
    """Return the Session of the terms of a client."""
    fields = Session.DESCRIPTOR.fields_by_name
    return Session(**{name: v for name, v in to_builtins(terms).items() if name in fields})


def record_of(message: Any) -> Any:
    """Return the record of a message; the server judges its values."""
    return RECORDS[message.DESCRIPTOR.name](**fields_of(message))


def fields_of(message: Any) -> dict[str, Any]:
    """Return the values of a message by the names of its fields, in Python's own types."""
    names = message.DESCRIPTOR.fields_by_name
    return {name: _plain(getattr(message, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float)):
        return value
    return tuple(each if isinstance(each, str) else record_of(each) for each in value)
