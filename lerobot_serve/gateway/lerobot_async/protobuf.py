# SPDX-License-Identifier: Apache-2.0
"""
The three protobuf messages of AsyncInference, read and written by hand: a second definition of
`transport.Observation` in the pool of protobuf would clash with LeRobot's own in one process.

Unknown fields are skipped, as protobuf does. Pure. Raises Malformed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES = 10


class Malformed(Exception):
    """The bytes are no such message."""


class TransferState(IntEnum):
    """Where a piece stands in its observation."""

    UNKNOWN, BEGIN, MIDDLE, END = range(4)


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of an observation, as transport.Observation has it."""

    state: TransferState
    data: memoryview


def read_piece(message: bytes) -> Piece:
    """Return a transport.Observation."""
    number, data = read_fields(message, number_field=1, bytes_field=2)
    try:
        return Piece(TransferState(number), data)
    except ValueError:
        raise Malformed(f'transfer_state must be in [0, 3], got {number}') from None


def read_policy_setup(message: bytes) -> memoryview:
    """Return the data of a transport.PolicySetup."""
    return read_fields(message, number_field=0, bytes_field=1)[1]


def write_actions(data: bytes) -> bytes:
    """Return a transport.Actions; an empty one is no bytes at all."""
    if not data:
        return b''
    return b'\x0a' + varint(len(data)) + data


def read_fields(message: bytes, number_field: int, bytes_field: int) -> tuple[int, memoryview]:
    """Return a number and bytes of a message, 0 and empty where they are missing."""
    view, position = memoryview(message), 0
    number, data = 0, view[:0]
    while position < len(view):
        tag, position = read_varint(view, position)
        field, kind = tag >> 3, tag & 7
        begin, end, value = field_bounds(view, position, kind)
        if field == number_field and kind == VARINT:
            number = value
        elif field == bytes_field and kind == BYTES:
            data = view[begin:end]
        elif field in (0, number_field, bytes_field):
            raise Malformed(f'field {field} is of another type')
        position = end
    return number, data


def field_bounds(view: memoryview, position: int, kind: int) -> tuple[int, int, int]:
    """Return begin and end of a field, and its value where it is a number."""
    begin, value = position, 0
    if kind == VARINT:
        value, end = read_varint(view, position)
    elif kind == BYTES:
        size, begin = read_varint(view, position)
        end = begin + size
    elif kind in (FIXED64, FIXED32):
        end = position + (8 if kind == FIXED64 else 4)
    else:
        raise Malformed(f'fields of type {kind} are not used')
    if end > len(view):
        raise Malformed('the message is cut off')
    return begin, end, value


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(view[position : position + VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise Malformed('a number is cut off')


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
