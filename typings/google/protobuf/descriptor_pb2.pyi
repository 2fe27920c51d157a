# SPDX-License-Identifier: Apache-2.0
from typing import Any

from google.protobuf.message import Message

class FileDescriptorProto(Message):
    message_type: Any
    enum_type: Any
    service: Any

class FieldDescriptorProto(Message):
    TYPE_FLOAT: int
    TYPE_INT64: int
    TYPE_INT32: int
    TYPE_UINT32: int
    TYPE_BOOL: int
    TYPE_STRING: int
    TYPE_BYTES: int
    TYPE_MESSAGE: int
    TYPE_ENUM: int
    LABEL_OPTIONAL: int
    LABEL_REPEATED: int
