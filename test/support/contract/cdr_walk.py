# SPDX-License-Identifier: Apache-2.0
"""
What a typed message is as bytes, worked out from its type description alone.

Shares no code with lerobot_serve.contract, so that the two can be held against each other. Fast
CDR leaves padding as it was in memory: equal messages may differ there. Here padding is zero, and
`padding` says where it is.
"""

from __future__ import annotations

import struct

from rosidl_parser.definition import (
    AbstractNestedType,
    AbstractSequence,
    AbstractString,
    BasicType,
    NamespacedType,
)

ENCAPSULATION = b'\x00\x01\x00\x00'
SCALARS = {
    'boolean': '?',
    'int8': 'b',
    'uint8': 'B',
    'int16': 'h',
    'uint16': 'H',
    'int32': 'i',
    'uint32': 'I',
    'int64': 'q',
    'uint64': 'Q',
    'float': 'f',
    'double': 'd',
}


class Walk:
    """One message: its bytes, which of them are padding, and where each field begins."""

    def __init__(self, message: object) -> None:
        self._data = bytearray(ENCAPSULATION)
        self.padding: set[int] = set()
        self.fields: list[tuple[int, str]] = []
        self._message(message, '')

    @property
    def data(self) -> bytes:
        return bytes(self._data)

    def masked(self, raw: bytes) -> bytes:
        """
        Return what the middleware wrote with zeros as padding, and without what it appends to fill
        the last four bytes.
        """
        size = len(self._data)
        assert size <= len(raw) < size + 4, f'{len(raw)} bytes were written, {size} expected'
        return bytes(0 if at in self.padding else byte for at, byte in enumerate(raw[:size]))

    def field_at(self, at: int) -> str:
        """Return the name of the field that holds a byte."""
        return max(((b, p) for b, p in self.fields if b <= at), default=(0, 'encapsulation'))[1]

    def _scalar(self, layout: str, value: object) -> None:
        size = struct.calcsize('<' + layout)
        while (len(self._data) - len(ENCAPSULATION)) % size:
            self.padding.add(len(self._data))
            self._data.append(0)
        self._data += struct.pack('<' + layout, value)

    def _message(self, message: object, path: str) -> None:
        names = message.get_fields_and_field_types()
        if not names:
            # the place holder that rosidl puts into an empty message
            self._scalar('B', 0)
        for name, kind in zip(names, message.SLOT_TYPES, strict=True):
            self._value(kind, getattr(message, name), f'{path}.{name}'.lstrip('.'))

    def _value(self, kind: object, value: object, path: str) -> None:
        if isinstance(kind, NamespacedType):
            self._message(value, path)
            return
        if not isinstance(kind, AbstractNestedType):
            self._leaf(kind, value)
            self.fields.append((len(self._data) - self._size(kind, value), path))
            return
        if isinstance(kind, AbstractSequence):
            self._scalar('I', len(value))
            self.fields.append((len(self._data) - 4, f'{path} (its length)'))
        for index, item in enumerate(value):
            self._value(kind.value_type, item, f'{path}[{index}]')

    def _leaf(self, kind: object, value: object) -> None:
        if isinstance(kind, BasicType):
            self._scalar(SCALARS[kind.typename], value)
            return
        assert isinstance(kind, AbstractString), f'{kind} is not known here'
        text = value.encode() + b'\x00'
        self._scalar('I', len(text))
        self._data += text

    def _size(self, kind: object, value: object) -> int:
        if isinstance(kind, BasicType):
            return struct.calcsize('<' + SCALARS[kind.typename])
        return 4 + len(value.encode()) + 1
