"""Opens the raw input messages of a robot: joint states by name, images as RGB. Any thread."""

from __future__ import annotations

import numpy as np
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image, JointState

from lerobot_serve.ros.conversions import frame_from_image
from lerobot_serve.wire.errors import Malformed


def joint_positions(raw: bytes, joints: tuple[str, ...]) -> np.ndarray:
    """Return the positions of `joints` in that order, whatever the message's. Raises Malformed."""
    message = deserialize_message(raw, JointState)
    if len(message.position) != len(message.name):
        raise Malformed(
            'wrong_shape',
            f'joint state: {len(message.name)} names and {len(message.position)} positions',
        )
    index = {name: i for i, name in enumerate(message.name)}
    missing = [joint for joint in joints if joint not in index]
    if missing:
        raise Malformed('missing_joint', f'joint state: no {missing}; it has {list(message.name)}')
    positions = np.array([message.position[index[joint]] for joint in joints], np.float32)
    if not np.isfinite(positions).all():
        raise Malformed(
            'not_finite', f'joint state: {dict(zip(joints, positions.tolist(), strict=True))}'
        )
    return positions


def frame(raw: bytes) -> np.ndarray:
    """Return height x width x channels, RGB. Raises Malformed."""
    return frame_from_image(deserialize_message(raw, Image))
