# SPDX-License-Identifier: Apache-2.0
"""
Read a msgpack message of openpi's client: numbers, texts, lists, mappings, and numpy arrays as
mappings with __ndarray__, data, dtype and shape.

Every length is compared with the bytes that are left before anything is built. Arrays are views
of the message, so a message costs its own size and a bounded number of small objects. Pure; any
thread.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.gateway.predictions import PredictionError, Status

OBJECTS_LIMIT, DEPTH_LIMIT = 16_384, 12
TEXT_LIMIT_BYTES, KEY_LIMIT_BYTES = 1 << 16, 256
DIMENSIONS_LIMIT, DIMENSION_LIMIT = 6, 1 << 24
ARRAY, GENERIC = '__ndarray__', '__npgeneric__'
_KINDS = ('b1', 'i1', 'u1', 'i2', 'i4', 'i8', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
DTYPES = {
    f'{order}{kind}': np.dtype(f'{order}{kind}')
    for kind in _KINDS
    for order in ('|' if kind.endswith('1') else '<>')
}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    code: struct.Struct(f'>{letter}')
    for code, letter in zip((*range(0xCA, 0xD4),), 'fdBHIQbhiq', strict=True)
}
# code -> bytes of the length that follows
_BYTES, _TEXTS = {0xC4: 1, 0xC5: 2, 0xC6: 4}, {0xD9: 1, 0xDA: 2, 0xDB: 4}
_LISTS, _MAPS = {0xDC: 2, 0xDD: 4}, {0xDE: 2, 0xDF: 4}


def read_message(data: bytes | memoryview) -> Any:
    """
    Return the message: None, bool, int, float, str, memoryview for bytes, list, dict with keys
    that are texts, or an array. Raises PredictionError.
    """
    return _Reader(memoryview(data)).message()


class _Reader:
    """One message, and the place in it."""

    __slots__ = ('_at', '_data', '_left', '_size')

    def __init__(self, data: memoryview) -> None:
        self._data, self._size, self._at = data, len(data), 0
        self._left = OBJECTS_LIMIT

    def message(self) -> Any:
        value = self._value(self._code(), 0)
        if self._at != self._size:
            raise malformed(f'{self._size - self._at} bytes follow its end')
        return value

    def _value(self, code: int, depth: int) -> Any:
        if code < 0x80:
            return code
        # of the keys of arrays, and of their data
        if width := _BYTES.get(code):
            return self._take(self._length(width))
        if code < 0x90:
            return self._map(code & 0x0F, depth)
        if code < 0xA0:
            return self._list(code & 0x0F, depth)
        if code < 0xC0:
            return self._text(code & 0x1F)
        if code >= 0xE0:
            return code - 0x100
        return self._tagged(code, depth)

    def _code(self) -> int:
        self._left -= 1
        if self._left < 0:
            raise malformed(
                f'it has more than {OBJECTS_LIMIT} values; send pictures and long vectors as '
                'numpy arrays'
            )
        at = self._at
        if at >= self._size:
            raise malformed('it is cut off')
        self._at = at + 1
        return self._data[at]

    def _tagged(self, code: int, depth: int) -> Any:
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if number := _NUMBERS.get(code):
            return number.unpack(self._take(number.size))[0]
        if width := _TEXTS.get(code):
            return self._text(self._length(width))
        if width := _LISTS.get(code):
            return self._list(self._length(width), depth)
        if width := _MAPS.get(code):
            return self._map(self._length(width), depth)
        raise malformed(f'byte 0x{code:02x} at {self._at - 1} is an extension, or no msgpack')

    def _length(self, width: int) -> int:
        return int.from_bytes(self._take(width), 'big')

    def _take(self, size: int) -> memoryview:
        """Return a view of the next bytes."""
        begin = self._at
        end = begin + size
        if end > self._size:
            raise malformed(f'{size} bytes are announced, {self._size - begin} follow')
        self._at = end
        return self._data[begin:end]

    def _text(self, size: int) -> str:
        if size > TEXT_LIMIT_BYTES:
            raise malformed(f'a text has {size} bytes, {TEXT_LIMIT_BYTES} are allowed')
        try:
            return str(self._take(size), 'utf-8')
        except UnicodeDecodeError:
            raise malformed('a text is not UTF-8') from None

    def _check_count(self, count: int, depth: int) -> None:
        if depth >= DEPTH_LIMIT:
            raise malformed(f'it is nested deeper than {DEPTH_LIMIT}')
        # each value has a byte at least
        if count > min(self._size - self._at, self._left):
            raise malformed(f'{count} values are announced, too many for its size or its limit')

    def _list(self, count: int, depth: int) -> list[Any]:
        self._check_count(count, depth)
        return [self._value(self._code(), depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Any:
        self._check_count(2 * count, depth)
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._key(depth + 1)
            if key in found:
                raise malformed(f'the key {key!r} is there twice')
            found[key] = self._value(self._code(), depth + 1)
        if ARRAY in found:
            return _array(found)
        return _number(found) if GENERIC in found else found

    def _key(self, depth: int) -> str:
        code = self._code()
        if 0xA0 <= code < 0xC0:
            return self._text(code & 0x1F)
        key = self._value(code, depth)
        if isinstance(key, memoryview) and len(key) <= KEY_LIMIT_BYTES:
            # those of arrays are bytes
            return str(key, 'utf-8', 'replace')
        if not isinstance(key, str) or len(key) > KEY_LIMIT_BYTES:
            raise malformed(f'a key is no text of at most {KEY_LIMIT_BYTES} bytes')
        return key


def _array(found: dict[str, Any]) -> NDArray[Any]:
    """Return the array of a mapping, a view of its bytes."""
    data, dtype = found.get('data'), _dtype(found.get('dtype'))
    if not isinstance(data, memoryview):
        raise malformed('the data of an array are no bytes')
    shape = _shape(found.get('shape'))
    expected = math.prod(shape) * dtype.itemsize
    if len(data) != expected:
        raise malformed(
            f'an array of shape {shape} and type {dtype.str} has {expected} bytes, got {len(data)}'
        )
    return np.frombuffer(data, dtype).reshape(shape)


def _dtype(given: object) -> np.dtype[Any]:
    name = str(given, 'ascii', 'replace') if isinstance(given, memoryview) else given
    found = DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        shown = repr(name)[:40] if isinstance(name, str) else type(given).__name__
        raise malformed(f'an array has the type {shown}; allowed are {", ".join(DTYPES)}')
    return found


def _shape(given: object) -> tuple[int, ...]:
    if not isinstance(given, list) or len(given) > DIMENSIONS_LIMIT:
        raise malformed(f'the shape of an array must be at most {DIMENSIONS_LIMIT} numbers')
    for size in given:
        if type(size) is not int or not 0 <= size <= DIMENSION_LIMIT:
            raise malformed(
                f'a dimension of an array must be in [0, {DIMENSION_LIMIT}], got {repr(size)[:40]}'
            )
    return tuple(given)


def _number(found: dict[str, Any]) -> float | int | bool:
    """Return a numpy scalar as a number."""
    data = found.get('data')
    _dtype(found.get('dtype'))
    if not isinstance(data, (bool, int, float)):
        raise malformed('a numpy scalar has no number')
    return data


def malformed(text: str) -> PredictionError:
    return PredictionError(Status.INVALID, f'the message cannot be read: {text}')
