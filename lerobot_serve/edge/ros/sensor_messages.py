# SPDX-License-Identifier: Apache-2.0
"""
Decode raw input messages: state values by name, and frames as RGB.

Pure functions; any thread. They raise Malformed for unusable messages. The module is a
MessageReader.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import math
import struct
from typing import Any

from geometry_msgs.msg import Quaternion
from nav_msgs.msg import Odometry
import numpy as np
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray

from lerobot_serve.arrays import Float64Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import Image as WireImage
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.description import CameraInput, StateSource
from lerobot_serve.ros.image_messages import (
    frame_from_compressed,
    frame_from_image,
    passthrough_jpeg,
)
from lerobot_serve.ros.subscriptions import decode_message, UNDECODABLE

# type name in a robot file -> message class
MESSAGE_TYPES: dict[str, type] = {
    'sensor_msgs/JointState': JointState,
    'nav_msgs/Odometry': Odometry,
    'std_msgs/Float64MultiArray': Float64MultiArray,
    'sensor_msgs/Image': Image,
    'sensor_msgs/CompressedImage': CompressedImage,
}

# after the encapsulation header, whose flag gives the byte order
STAMP_OFFSET, STAMP, STAMP_BIG_ENDIAN = 4, struct.Struct('<iI'), struct.Struct('>iI')


def state_vector(raws: Sequence[bytes], sources: Sequence[StateSource]) -> Float64Array:
    """Return the concatenated values of all sources, from one message of each."""
    return np.concatenate(
        [source_values(raw, source) for raw, source in zip(raws, sources, strict=True)],
        dtype=np.float64,
    )


def source_values(raw: bytes, source: StateSource) -> Float64Array:
    """Return the values of one source in the order of its fields; all are finite."""
    found = READERS[source.type](
        decode_message(raw, MESSAGE_TYPES[source.type], source.topic), source
    )
    # sent as float32, where a larger number is infinite
    with np.errstate(over='ignore'):
        finite = np.isfinite(found.astype(np.float32))
    if not finite.all():
        bad = int(finite.argmin())
        raise Malformed('not_finite', f'{source.topic}: {source.fields[bad]} is {found[bad]:g}')
    return found


def stamp_ns(raw: bytes, topic: str) -> int:
    """Return the header stamp of a message, by the clock of its sender."""
    if len(raw) < STAMP.size + STAMP_OFFSET:
        raise Malformed(UNDECODABLE, f'{topic}: {len(raw)} bytes hold no stamp')
    layout = STAMP if raw[1] & 1 else STAMP_BIG_ENDIAN
    seconds: int
    nanoseconds: int
    seconds, nanoseconds = layout.unpack_from(raw, STAMP_OFFSET)
    return seconds * 1_000_000_000 + nanoseconds


def rgb_frame(raw: bytes, camera: CameraInput) -> FrameArray:
    """Return height x width x channels, RGB."""
    message = decode_message(raw, MESSAGE_TYPES[camera.type], camera.topic)
    try:
        if camera.type == 'sensor_msgs/CompressedImage':
            return frame_from_compressed(message)
        return frame_from_image(message)
    except Malformed as error:
        raise Malformed(error.reason, f'{camera.topic}: {error}') from None


def camera_jpeg(raw: bytes, camera: CameraInput) -> WireImage | None:
    """
    Return a camera's own JPEG in wire form, with an empty name; None if it must be encoded.

    Decoding and encoding again would cost time and quality.
    """
    if camera.type != 'sensor_msgs/CompressedImage':
        return None
    return passthrough_jpeg(decode_message(raw, CompressedImage, camera.topic))


def _joint_values(message: JointState, source: StateSource) -> Float64Array:
    given = np.array(getattr(message, source.field), np.float64)
    if len(given) != len(message.name):
        raise Malformed(
            'wrong_shape',
            f'{source.topic}: {len(message.name)} names and {len(given)} of {source.field}',
        )
    index = {name: i for i, name in enumerate(message.name)}
    missing = [joint for joint in source.fields if joint not in index]
    if missing:
        raise Malformed('missing_joint', f'{source.topic}: no {missing}; it has {message.name}')
    if len(index) != len(message.name):
        raise Malformed('doubled_joint', f'{source.topic}: duplicate joint in {message.name}')
    return given[[index[joint] for joint in source.fields]]


def _odometry_values(message: Odometry, source: StateSource) -> Float64Array:
    return np.array([_odometry_value(message, field) for field in source.fields], np.float64)


def _odometry_value(message: Odometry, field: str) -> float:
    part, axis = field.split('.')
    if field == 'pose.yaw':
        return yaw(message.pose.pose.orientation)
    if part == 'pose':
        return float(getattr(message.pose.pose.position, axis))
    return float(getattr(getattr(message.twist.twist, part), axis))


def yaw(rotation: Quaternion) -> float:
    """Return the rotation around z in (-pi, pi], NaN if all four numbers are 0."""
    x, y, z, w = rotation.x, rotation.y, rotation.z, rotation.w
    if not any((x, y, z, w)):
        return math.nan
    # valid for quaternions that are not normalised, as some drivers send
    return math.atan2(2 * (w * z + x * y), w * w + x * x - y * y - z * z)


def _array_values(message: Float64MultiArray, source: StateSource) -> Float64Array:
    given = np.array(message.data, np.float64)
    if len(given) != len(source.fields):
        raise Malformed(
            'wrong_shape', f'{source.topic}: {len(given)} numbers for {list(source.fields)}'
        )
    return given


READERS: dict[str, Callable[[Any, StateSource], Float64Array]] = {
    'sensor_msgs/JointState': _joint_values,
    'nav_msgs/Odometry': _odometry_values,
    'std_msgs/Float64MultiArray': _array_values,
}
