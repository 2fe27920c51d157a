# SPDX-License-Identifier: Apache-2.0
"""
Read and write msgpack with arrays, in the two forms in use: of openpi and of GR00T.

Arrays that are read are views of the message. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from lerobot_serve.peer_formats.array_types import array_view, numeric_type, PeerFormatError
from lerobot_serve.peer_formats.msgpack_reader import read_message
from lerobot_serve.peer_formats.npy import read_npy, write_npy
from lerobot_serve.peer_formats.openpi_array import openpi_array_at


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
            raise PeerFormatError('the data of an array are no bytes, or its shape is no list')
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
