# SPDX-License-Identifier: Apache-2.0
"""
Read and write msgpack with arrays, in the two forms in use: of openpi and of GR00T.

Arrays that are read are views of the message. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
import re
import struct
from typing import Any

import msgpack
import numpy as np

from lerobot_serve.peer_formats.array_types import (
    array_view,
    numeric_type,
    PeerFormatError,
    read_npy,
    TYPES,
    write_npy,
)
from lerobot_serve.peer_formats.msgpack_reader import read_message

_HEAD = re.compile(rb'\xc4\x0b__ndarray__\xc3\xc4\x04data([\xc4\xc5\xc6])')
_TAIL = re.compile(rb'\xc4\x05dtype\xa3([|<>]..)\xc4\x05shape([\x90-\x96])')
_TYPES = {name.encode(): kind for name, kind in TYPES.items()}
# code of bytes -> the length that follows
_LENGTHS = {
    code: struct.Struct(f'>{letter}')
    for code, letter in zip((b'\xc4', b'\xc5', b'\xc6'), 'BHI', strict=True)
}
# of the longest length, and of what follows the data
_SHORTEST = 4 + 18
# code of a number -> its bytes; a smaller code is the number
_WIDTHS, _SMALLEST_CODE = {0xCC: 1, 0xCD: 2}, 0x80


def unpack_openpi(data: bytes | memoryview) -> Any:
    """Return a message of openpi. Raises PeerFormatError."""
    return read_message(data, _openpi_array, openpi_array_at)


def pack_openpi(value: Any) -> bytes:
    """Return a message as openpi's msgpack_numpy writes it."""
    return _pack(value, _openpi_map)


def unpack_groot(data: bytes | memoryview) -> Any:
    """
    Return a message of GR00T; a modality config is the dict of its fields. Raises PeerFormatError.
    """
    return read_message(data, _groot_array)


def pack_groot(value: Any) -> bytes:
    """Return a message as GR00T's MsgSerializer writes it."""
    return _pack(value, _groot_map)


def _pack(value: Any, default: Callable[[Any], Any]) -> bytes:
    packed: bytes = msgpack.packb(value, default=default)
    return packed


def _openpi_array(value: dict[str, Any]) -> Any:
    if '__ndarray__' in value:
        data, shape = value.get('data'), value.get('shape')
        kind = numeric_type(value.get('dtype'))
        if not isinstance(data, memoryview) or not isinstance(shape, list):
            raise PeerFormatError('malformed array: data must be bytes and shape a list')
        return array_view(data, kind, shape)
    if '__npgeneric__' in value:
        scalar = value.get('data')
        numeric_type(value.get('dtype'))
        if not isinstance(scalar, (bool, int, float)):
            raise PeerFormatError('a numpy scalar has no number')
        return scalar
    return value


def _openpi_map(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind not in 'VOc':
        return {
            b'__ndarray__': True,
            b'data': value.tobytes(),
            b'dtype': value.dtype.str,
            b'shape': value.shape,
        }
    if isinstance(value, np.generic) and value.dtype.kind not in 'VOc':
        return {b'__npgeneric__': True, b'data': value.item(), b'dtype': value.dtype.str}
    raise TypeError(f'openpi messages cannot hold {type(value).__name__}')


def openpi_array_at(message: memoryview, begin: int) -> tuple[Any, int] | None:
    """
    Return the array whose keys begin at `begin`, and its end; None where it is cut off, or not
    written as openpi's client does, key after key: those take the general way. It halves the time
    of a small message. Raises PeerFormatError.
    """
    head = _HEAD.match(message, begin)
    if head is None or len(message) - head.end() < _SHORTEST:
        return None
    length = _LENGTHS[head[1]]
    first = head.end() + length.size
    end = first + length.unpack_from(message, head.end())[0]
    tail = _TAIL.match(message, end)
    kind = _TYPES.get(tail[1]) if tail else None
    if tail is None or kind is None:
        return None
    shape, at = _shape(message, tail.end(), tail[2][0] & 0x0F)
    return None if shape is None else (array_view(message[first:end], kind, shape), at)


def _shape(message: memoryview, at: int, count: int) -> tuple[list[int] | None, int]:
    """Return so many numbers below 2^16 and where they end; None for any other value."""
    sizes, size = [], len(message)
    for _ in range(count):
        code = message[at] if at < size else _SMALLEST_CODE
        at += 1
        if code >= _SMALLEST_CODE:
            width = _WIDTHS.get(code)
            if width is None or at + width > size:
                return None, at
            code, at = int.from_bytes(message[at : at + width], 'big'), at + width
        sizes.append(code)
    return sizes, at


def _groot_array(value: dict[str, Any]) -> Any:
    if '__ndarray_class__' in value:
        data = value.get('as_npy')
        if not isinstance(data, memoryview):
            raise PeerFormatError('a GR00T array must have as_npy as bytes')
        return read_npy(data)
    if '__ModalityConfig_class__' in value:
        # the name of the field differs between versions of GR00T
        fields = value.get('as_json', value.get('as_dict'))
        if not isinstance(fields, dict):
            raise PeerFormatError('a GR00T modality config must have its fields as a map')
        return fields
    return value


def _groot_map(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {'__ndarray_class__': True, 'as_npy': write_npy(value)}
    raise TypeError(f'GR00T messages cannot hold {type(value).__name__}')
