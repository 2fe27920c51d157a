# SPDX-License-Identifier: Apache-2.0
"""Messages as openpi's client packs them, and the observations of its examples."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np


def packed(content: Any) -> bytes:
    """Return a message with arrays as openpi_client.msgpack_numpy writes them."""
    return msgpack.packb(content, default=pack_array)


def pack_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return {
            b'__ndarray__': True,
            b'data': value.tobytes(),
            b'dtype': value.dtype.str,
            b'shape': value.shape,
        }
    if isinstance(value, np.generic):
        return {b'__npgeneric__': True, b'data': value.item(), b'dtype': value.dtype.str}
    return value


def unpacked(data: bytes) -> Any:
    """Return a message as openpi's client reads it."""
    return msgpack.unpackb(data, object_hook=unpack_array)


def unpack_array(found: dict[Any, Any]) -> Any:
    if b'__ndarray__' in found:
        return np.ndarray(
            buffer=found[b'data'], dtype=np.dtype(found[b'dtype']), shape=found[b'shape']
        )
    return found


def picture(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(256, size=shape, dtype=np.uint8)


# keys, shapes and types of openpi's examples/simple_client and src/openpi/policies

ALOHA_CAMERAS = ('cam_high', 'cam_low', 'cam_left_wrist', 'cam_right_wrist')


def aloha() -> dict[str, Any]:
    return {
        'state': np.ones((14,)),
        'images': {name: picture(3, 224, 224) for name in ALOHA_CAMERAS},
        'prompt': 'do something',
    }


def droid() -> dict[str, Any]:
    return {
        'observation/exterior_image_1_left': picture(224, 224, 3),
        'observation/wrist_image_left': picture(224, 224, 3),
        'observation/joint_position': np.linspace(0, 1, 7),
        'observation/gripper_position': np.array([0.5]),
        'prompt': 'do something',
    }


def libero() -> dict[str, Any]:
    return {
        'observation/state': np.linspace(0, 1, 8),
        'observation/image': picture(224, 224, 3),
        'observation/wrist_image': picture(224, 224, 3),
        'prompt': 'do something',
    }
