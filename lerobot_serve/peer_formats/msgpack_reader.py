# SPDX-License-Identifier: Apache-2.0
"""
Read a msgpack message: numbers, texts, bytes, lists, and mappings from texts.

Every length is compared with the bytes that are left before anything is built. Bytes are views
of the message, so a message costs its own size and a bounded number of small objects. Pure; any
thread.
"""

from __future__ import annotations

from collections.abc import Callable
import struct
from typing import Any

from lerobot_serve.peer_formats.array_types import PeerFormatError

# a list or mapping counts as two values
VALUES_LIMIT, DEPTH_LIMIT = 16_384, 12
LIST_LIMIT, MAP_LIMIT = 4096, 1024
SHORTCUT_KEYS, SHORTCUT_VALUES = 4, 16
TEXT_LIMIT_BYTES, KEY_LIMIT_BYTES = 1 << 16, 256
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_NUMBERS = {
    code: struct.Struct(f'>{letter}')
    for code, letter in zip((*range(0xCA, 0xD4),), 'fdBHIQbhiq', strict=True)
}
_BIN_8, _BIN_32 = 0xC4, 0xC6
# code -> bytes of the length that follows
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_LENGTHS |= {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_TEXT_32, _LIST_32 = 0xDB, 0xDD

MapHook = Callable[[dict[str, Any]], Any]
# the mapping at a place in the message, and where it ends; None if it needs the general way
Shortcut = Callable[[memoryview, int], tuple[Any, int] | None]


def read_message(
    data: bytes | memoryview, on_map: MapHook, shortcut: Shortcut | None = None
) -> Any:
    """
    Return the message: None, bool, int, float, str, memoryview for bytes, list, and what `on_map`
    returns for each mapping. Raises PeerFormatError.

    `shortcut` reads a frequent mapping of SHORTCUT_KEYS keys at once, or returns None; it builds
    at most SHORTCUT_VALUES values.
    """
    return _Reader(memoryview(data).toreadonly(), on_map, shortcut).message()


class _Reader:
    """One message, and the place in it."""

    __slots__ = ('_at', '_data', '_left', '_on_map', '_shortcut', '_size')

    def __init__(self, data: memoryview, on_map: MapHook, shortcut: Shortcut | None) -> None:
        self._data, self._size, self._at = data, len(data), 0
        self._on_map, self._shortcut, self._left = on_map, shortcut, VALUES_LIMIT

    def message(self) -> Any:
        value = self._value(0)
        if self._at != self._size:
            raise PeerFormatError(f'{self._size - self._at} bytes follow its end')
        return value

    def _value(self, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise too_many_values()
        at = self._at
        if at >= self._size:
            raise PeerFormatError('it is cut off')
        code = self._data[at]
        self._at = at + 1
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 0x100
        if code >= 0xC0:
            return self._tagged(code, depth)
        if code >= 0xA0:
            return self._text(code & 0x1F)
        if code >= 0x90:
            return self._list(code & 0x0F, depth)
        return self._map(code & 0x0F, depth)

    def _tagged(self, code: int, depth: int) -> Any:
        if number := _NUMBERS.get(code):
            return number.unpack(self._take(number.size))[0]
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        width = _LENGTHS.get(code)
        if width is None:
            raise PeerFormatError(
                f'byte 0x{code:02x} at {self._at - 1} is an extension, or no msgpack'
            )
        size = int.from_bytes(self._take(width), 'big')
        if code <= _BIN_32:
            return self._take(size)
        if code <= _TEXT_32:
            return self._text(size)
        return self._list(size, depth) if code <= _LIST_32 else self._map(size, depth)

    def _take(self, size: int) -> memoryview:
        """Return a view of the next bytes."""
        begin = self._at
        end = begin + size
        if end > self._size:
            raise PeerFormatError(f'{size} bytes are announced, {self._size - begin} follow')
        self._at = end
        return self._data[begin:end]

    def _text(self, size: int) -> str:
        if size > TEXT_LIMIT_BYTES:
            raise PeerFormatError(f'a text has {size} bytes, {TEXT_LIMIT_BYTES} are allowed')
        try:
            return str(self._take(size), 'utf-8')
        except UnicodeDecodeError:
            raise PeerFormatError('a text is not UTF-8') from None

    def _begin_container(self, values: int, depth: int) -> None:
        """Check how many values are announced, before the first is read."""
        self._left -= 1
        if depth >= DEPTH_LIMIT:
            raise PeerFormatError(f'it is nested deeper than {DEPTH_LIMIT}')
        # each value has a byte at least
        if values > self._size - self._at:
            raise PeerFormatError(f'{values} values are announced, too many for its size')
        if values > self._left:
            raise too_many_values()

    def _list(self, count: int, depth: int) -> list[Any]:
        if count > LIST_LIMIT:
            raise PeerFormatError(
                f'a list has too many values, {count}; at most {LIST_LIMIT} are allowed, send '
                'more as numpy arrays'
            )
        self._begin_container(count, depth)
        return [self._value(depth + 1) for _ in range(count)]

    def _map(self, count: int, depth: int) -> Any:
        if (
            self._shortcut
            and count == SHORTCUT_KEYS
            and depth < DEPTH_LIMIT - 1
            and self._left >= SHORTCUT_VALUES
            and (found := self._shortcut(self._data, self._at))
        ):
            value, self._at = found
            self._left -= SHORTCUT_VALUES
            return value
        return self._general_map(count, depth)

    def _general_map(self, count: int, depth: int) -> Any:
        if count > MAP_LIMIT:
            raise PeerFormatError(
                f'a mapping has too many keys, {count}; at most {MAP_LIMIT} are allowed'
            )
        self._begin_container(2 * count, depth)
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._key(depth + 1)
            if key in found:
                raise PeerFormatError(f'the key {key!r} is there twice')
            found[key] = self._value(depth + 1)
        return self._on_map(found)

    def _key(self, depth: int) -> str:
        at = self._at
        if at + 1 < self._size:
            # most keys are short texts; those of openpi's arrays are short bytes
            code = self._data[at]
            if 0xA0 <= code < 0xC0:
                return self._short_key(at + 1, code & 0x1F)
            if code == _BIN_8:
                return self._short_key(at + 2, self._data[at + 1])
        key = self._value(depth)
        if not isinstance(key, str) or len(key) > KEY_LIMIT_BYTES:
            raise PeerFormatError(f'a key is not text of at most {KEY_LIMIT_BYTES} bytes')
        return key

    def _short_key(self, begin: int, size: int) -> str:
        self._left -= 1
        self._at = begin
        return self._text(size)


def too_many_values() -> PeerFormatError:
    return PeerFormatError(
        f'it has more than {VALUES_LIMIT} values, of which a list or mapping counts as two; send '
        'pictures and long vectors as numpy arrays'
    )
