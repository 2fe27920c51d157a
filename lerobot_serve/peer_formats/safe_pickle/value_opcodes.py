# SPDX-License-Identifier: Apache-2.0
"""
Opcodes that push one value: numbers, texts, bytes, and what the memo holds; `reader` handles the
three most frequent ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

UINT16, INT32 = Struct('<H'), Struct('<i')
UINT32, UINT64, FLOAT64 = Struct('<I'), Struct('<Q'), Struct('>d')
# LONG1 with more bytes is not a number that a robot sends
LONG_BYTES = 8
SCALARS = frozenset({str, int, float, bool, type(None)})
# what the memo may give again: nothing that holds other values, or it could hold itself
SHAREABLE = SCALARS | {memoryview, Global, Dtype, Array, LongText, Storage}


# does something with a number of the pickle; gets the position after it, and returns the next
NumberHandler = Callable[[Reader, int, int], int]


def protocol(reader: Reader, position: int) -> int:
    return position + 1


def number(form: Struct) -> Handler:
    """Return the handler that pushes a number."""
    read, size = form.unpack_from, form.size

    def push(reader: Reader, position: int) -> int:
        reader.stack.append(read(reader.view, position)[0])
        return position + size

    return push


def by(form: Struct, handle: NumberHandler) -> Handler:
    """Return the handler that reads a length or an index first."""
    read, size = form.unpack_from, form.size
    return lambda reader, position: handle(reader, position + size, read(reader.view, position)[0])


def by_byte(handle: NumberHandler) -> Handler:
    """Return the handler that reads a length or an index of one byte first."""
    return lambda reader, position: handle(reader, position + 1, reader.view[position])


def constant(value: object) -> Handler:
    """Return the handler that pushes a constant."""

    def push(reader: Reader, position: int) -> int:
        reader.stack.append(value)
        return position

    return push


def frame(reader: Reader, position: int, size: int) -> int:
    reader.take(position, size)
    return position


def long(reader: Reader, position: int, size: int) -> int:
    if size > LONG_BYTES:
        raise PickleRefused(f'an integer of {size} bytes; {LONG_BYTES} are allowed')
    data = reader.take(position, size)
    reader.stack.append(int.from_bytes(data, 'little', signed=True))
    return position + size


def text(reader: Reader, position: int, size: int) -> int:
    view = reader.take(position, size)
    if size > reader.limits.text_bytes:
        reader.stack.append(LongText(view))
    else:
        reader.budget.text(size)
        reader.stack.append(str(view, 'utf-8'))
    return position + size


def data(reader: Reader, position: int, size: int) -> int:
    reader.stack.append(reader.take(position, size))
    return position + size


def get(reader: Reader, position: int, index: int) -> int:
    value = reader.memo[index]
    if type(value) not in SHAREABLE and not is_flat_tuple(value):
        raise PickleRefused(f'a {type(value).__name__} is used twice')
    reader.stack.append(value)
    return position


def is_flat_tuple(value: object) -> bool:
    return type(value) is tuple and all(type(each) in SCALARS for each in value)


def put(reader: Reader, position: int, index: int) -> int:
    reader.memo[index] = reader.stack[-1]
    return position


HANDLERS: Mapping[int, Handler] = {
    0x80: protocol,
    0x95: by(UINT64, frame),
    ord('J'): number(INT32),
    ord('M'): number(UINT16),
    0x8A: by_byte(long),
    ord('G'): number(FLOAT64),
    ord('N'): constant(None),
    0x88: constant(True),
    0x89: constant(False),
    ord('X'): by(UINT32, text),
    0x8D: by(UINT64, text),
    ord('C'): by_byte(data),
    ord('B'): by(UINT32, data),
    0x8E: by(UINT64, data),
    # BYTEARRAY8: read-only here, as everything else
    0x96: by(UINT64, data),
    ord('h'): by_byte(get),
    ord('j'): by(UINT32, get),
    ord('q'): by_byte(put),
    ord('r'): by(UINT32, put),
}
