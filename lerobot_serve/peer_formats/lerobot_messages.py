# SPDX-License-Identifier: Apache-2.0
"""
The three protobuf messages of LeRobot's AsyncInference, read and written by hand: a second
definition of `transport.Observation` in the pool of protobuf would clash with LeRobot's own in one
process.

Unknown fields are skipped, as protobuf does. Any thread. Raises PeerFormatError.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from lerobot_serve.peer_formats.array_types import PeerFormatError

# as LeRobot's client does; gRPC's limit is 4 MiB
PIECE_BYTES = 2 << 20
# tags of the first fields
STATE, DATA, OBSERVATION_DATA = b'\x08', b'\x0a', b'\x12'
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
VARINT_BYTES = 10


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
        raise PeerFormatError(f'transfer_state must be in [0, 3], got {number}') from None


def observation_pieces(pickled: bytes) -> Iterator[bytes]:
    """Return the messages transport.Observation of one upload."""
    for begin in range(0, len(pickled), PIECE_BYTES):
        piece = pickled[begin : begin + PIECE_BYTES]
        is_last = begin + PIECE_BYTES >= len(pickled)
        first = TransferState.BEGIN if begin == 0 else TransferState.MIDDLE
        state = TransferState.END if is_last else first
        yield STATE + varint(state) + OBSERVATION_DATA + varint(len(piece)) + piece


def read_data(message: bytes) -> memoryview:
    """Return the data of a transport.PolicySetup or transport.Actions."""
    return read_fields(message, number_field=0, bytes_field=1)[1]


def write_data(data: bytes) -> bytes:
    """Return a transport.PolicySetup or transport.Actions; an empty one is no bytes at all."""
    return DATA + varint(len(data)) + data if data else b''


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
            raise PeerFormatError(f'field {field} is of another type')
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
        raise PeerFormatError(f'fields of type {kind} are not used')
    if end > len(view):
        raise PeerFormatError('the message is cut off')
    return begin, end, value


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(view[position : position + VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, position + shift + 1
    raise PeerFormatError('a number is cut off')


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
