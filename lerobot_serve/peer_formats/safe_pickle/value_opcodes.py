# SPDX-License-Identifier: Apache-2.0
"""
Opcodes that push one value: numbers, texts, bytes, and what the memo holds; `reader` handles the
three most frequent ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from lerobot_serve.peer_formats.safe_pickle.reader import Handler, Reader
from lerobot_serve.peer_formats.safe_pickle.values import (
    Array,
    Dtype,
    Global,
    LongText,
    PickleRefused,
    Storage,
)

INT32, UINT32 = Struct('<i').unpack_from, Struct('<I').unpack_from
UINT16, UINT64 = Struct('<H').unpack_from, Struct('<Q').unpack_from
FLOAT64 = Struct('>d').unpack_from
# LONG1 with more bytes is not a number that a robot sends
LONG_BYTES = 8
SCALARS = frozenset({str, int, float, bool, type(None)})
# what the memo may give again: nothing that holds other values, or it could hold itself
SHAREABLE = SCALARS | {memoryview, Global, Dtype, Array, LongText, Storage}


def protocol(reader: Reader, position: int) -> int:
    return position + 1


def frame(reader: Reader, position: int) -> int:
    reader.take(position + 8, UINT64(reader.view, position)[0])
    return position + 8


def int32(reader: Reader, position: int) -> int:
    reader.stack.append(INT32(reader.view, position)[0])
    return position + 4


def uint16(reader: Reader, position: int) -> int:
    reader.stack.append(UINT16(reader.view, position)[0])
    return position + 2


def long1(reader: Reader, position: int) -> int:
    size = reader.view[position]
    if size > LONG_BYTES:
        raise PickleRefused(f'an integer of {size} bytes; {LONG_BYTES} are allowed')
    data = reader.take(position + 1, size)
    reader.stack.append(int.from_bytes(data, 'little', signed=True))
    return position + 1 + size


def float64(reader: Reader, position: int) -> int:
    reader.stack.append(FLOAT64(reader.view, position)[0])
    return position + 8


def constant(value: object) -> Handler:
    """Return the handler that pushes a constant."""

    def push(reader: Reader, position: int) -> int:
        reader.stack.append(value)
        return position

    return push


def text32(reader: Reader, position: int) -> int:
    return text(reader, position + 4, UINT32(reader.view, position)[0])


def text64(reader: Reader, position: int) -> int:
    return text(reader, position + 8, UINT64(reader.view, position)[0])


def text(reader: Reader, position: int, size: int) -> int:
    view = reader.take(position, size)
    if size > reader.limits.text_bytes:
        reader.stack.append(LongText(view))
    else:
        reader.budget.text(size)
        reader.stack.append(str(view, 'utf-8'))
    return position + size


def bytes8(reader: Reader, position: int) -> int:
    return data(reader, position + 1, reader.view[position])


def bytes32(reader: Reader, position: int) -> int:
    return data(reader, position + 4, UINT32(reader.view, position)[0])


def bytes64(reader: Reader, position: int) -> int:
    return data(reader, position + 8, UINT64(reader.view, position)[0])


def data(reader: Reader, position: int, size: int) -> int:
    reader.stack.append(reader.take(position, size))
    return position + size


def get8(reader: Reader, position: int) -> int:
    return get(reader, reader.view[position], position + 1)


def get32(reader: Reader, position: int) -> int:
    return get(reader, UINT32(reader.view, position)[0], position + 4)


def get(reader: Reader, index: int, position: int) -> int:
    value = reader.memo[index]
    if type(value) not in SHAREABLE and not is_flat_tuple(value):
        raise PickleRefused(f'a {type(value).__name__} is used twice')
    reader.stack.append(value)
    return position


def is_flat_tuple(value: object) -> bool:
    return type(value) is tuple and all(type(each) in SCALARS for each in value)


def put8(reader: Reader, position: int) -> int:
    reader.memo[reader.view[position]] = reader.stack[-1]
    return position + 1


def put32(reader: Reader, position: int) -> int:
    reader.memo[UINT32(reader.view, position)[0]] = reader.stack[-1]
    return position + 4


HANDLERS: Mapping[int, Handler] = {
    0x80: protocol,
    0x95: frame,
    ord('J'): int32,
    ord('M'): uint16,
    0x8A: long1,
    ord('G'): float64,
    ord('N'): constant(None),
    0x88: constant(True),
    0x89: constant(False),
    ord('X'): text32,
    0x8D: text64,
    ord('C'): bytes8,
    ord('B'): bytes32,
    0x8E: bytes64,
    # BYTEARRAY8: read-only here, as everything else
    0x96: bytes64,
    ord('h'): get8,
    ord('j'): get32,
    ord('q'): put8,
    ord('r'): put32,
}
