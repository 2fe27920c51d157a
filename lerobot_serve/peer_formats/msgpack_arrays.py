# SPDX-License-Identifier: Apache-2.0
"""
Read and write msgpack with arrays, in the two forms in use: of openpi and of GR00T.

The number of containers and items is bounded: one byte of msgpack can be a container of 64 bytes
of memory. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from lerobot_serve.peer_formats.array_types import array_view, numeric_type, PeerFormatError
from lerobot_serve.peer_formats.npy import read_npy, write_npy

LIST_LIMIT = 4096
MAP_LIMIT = 1024
# in one message: its lists and maps, and all their items
CONTAINERS_LIMIT = 8192
ITEMS_LIMIT = 65536

Hook = Callable[[dict[Any, Any]], Any]


def unpack_openpi(data: bytes | memoryview) -> Any:
    """Return a message of openpi. Raises PeerFormatError."""
    return _unpack(data, _openpi_array)


def pack_openpi(value: Any) -> bytes:
    """Return a message as openpi's msgpack_numpy writes it."""
    return _pack(value, _openpi_map)


def unpack_groot(data: bytes | memoryview) -> Any:
    """
    Return a message of GR00T; a modality config is the dict of its fields. Raises PeerFormatError.
    """
    return _unpack(data, _groot_array)


def pack_groot(value: Any) -> bytes:
    """Return a message as GR00T's MsgSerializer writes it."""
    return _pack(value, _groot_map)


class _Bounds:
    """Counts what msgpack builds, and refuses more than the limits."""

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._containers = self._items = 0

    def on_map(self, value: dict[Any, Any]) -> Any:
        self._count(len(value))
        return self._hook(value)

    def on_list(self, value: list[Any]) -> list[Any]:
        self._count(len(value))
        return value

    def _count(self, items: int) -> None:
        self._containers += 1
        self._items += items
        if self._containers > CONTAINERS_LIMIT or self._items > ITEMS_LIMIT:
            raise PeerFormatError(
                f'a msgpack message may have at most {CONTAINERS_LIMIT} lists and maps with '
                f'{ITEMS_LIMIT} items; send numbers as arrays'
            )


def _unpack(data: bytes | memoryview, hook: Hook) -> Any:
    bounds = _Bounds(hook)
    try:
        return msgpack.unpackb(
            data,
            object_hook=bounds.on_map,
            list_hook=bounds.on_list,
            ext_hook=_no_extension,
            max_array_len=LIST_LIMIT,
            max_map_len=MAP_LIMIT,
        )
    except PeerFormatError:
        raise
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        # some of msgpack's errors have no text
        reason = str(error) or type(error).__name__
        raise PeerFormatError(f'not a valid msgpack message: {reason:.200}') from None


def _no_extension(code: int, data: bytes) -> Any:
    raise PeerFormatError(f'msgpack extension {code} is not part of the protocol')


def _pack(value: Any, default: Callable[[Any], Any]) -> bytes:
    packed: bytes = msgpack.packb(value, default=default)
    return packed


def _openpi_array(value: dict[Any, Any]) -> Any:
    if b'__ndarray__' in value:
        data, shape = value.get(b'data'), value.get(b'shape')
        if not isinstance(data, bytes) or not isinstance(shape, list):
            raise PeerFormatError('an openpi array must have data as bytes and a shape as a list')
        return array_view(data, numeric_type(value.get(b'dtype')), shape)
    if b'__npgeneric__' in value:
        scalar = value.get(b'data')
        if not isinstance(scalar, (bool, int, float)):
            raise PeerFormatError(f'an openpi scalar must be a number, got {scalar!r:.40}')
        numeric_type(value.get(b'dtype'))
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


def _groot_array(value: dict[Any, Any]) -> Any:
    if '__ndarray_class__' in value:
        data = value.get('as_npy')
        if not isinstance(data, bytes):
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
