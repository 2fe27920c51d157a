# SPDX-License-Identifier: Apache-2.0
"""
Decode states, frames and commands of a bag from their CDR bytes. Pure functions; any thread. Each
raises Malformed for a message that cannot be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geometry_msgs.msg import Twist, TwistStamped
import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import CameraInput, RobotDescription, StateSource
from lerobot_serve.edge.ros import sensor_messages
from lerobot_serve.ros.topics.checked_subscription import decode_message
from lerobot_serve.wire.errors import Malformed

FLOAT_DEPTH = '32FC1'


def state_values(raw: bytes, source: StateSource) -> Float64Array:
    """Return the values of one source in the order of its fields, in the robot's units."""
    return sensor_messages.source_values(raw, source)


def frame_of(raw: bytes, topic: str, type_name: str) -> NDArray[Any]:
    """Return height x width x channels: RGB of 8 bits; depth of 16 bits or float32."""
    short = type_name.replace('/msg/', '/')
    if short == 'sensor_msgs/Image':
        image = decode_message(raw, Image, topic)
        if image.encoding == FLOAT_DEPTH:
            return _float_depth(image, topic)
    return sensor_messages.rgb_frame(raw, CameraInput(topic, topic, short, 0.0))


def _float_depth(image: Image, topic: str) -> NDArray[np.float32]:
    row_bytes = 4 * image.width
    if image.step < row_bytes or len(image.data) < image.step * image.height or not row_bytes:
        raise Malformed('wrong_shape', f'{topic}: {image.width}x{image.height} of {image.step}')
    rows = np.frombuffer(image.data, np.uint8, image.step * image.height)
    rows = np.ascontiguousarray(rows.reshape(image.height, -1)[:, :row_bytes])
    pixels = rows.view('>f4' if image.is_bigendian else '<f4').astype(np.float32)
    return pixels.reshape(image.height, image.width, 1)


def command_values(raw: bytes, robot: RobotDescription, topic: str) -> Float64Array:
    """Return the actions that a command message asks for, in their order and the robot's units."""
    kind, read = COMMANDS[robot.command.type]
    message = decode_message(raw, kind, topic)
    found = np.array(read(message, robot, topic), np.float64)
    if found.shape != (len(robot.actions),) or not np.isfinite(found).all():
        raise Malformed('wrong_shape', f'{topic}: {found.tolist()} for {robot.action_joints}')
    return found


def _by_joint(
    names: Sequence[str], values: Sequence[float], robot: RobotDescription, topic: str
) -> list[float]:
    given = dict(zip(names, values, strict=False))
    missing = [joint for joint in robot.action_joints if joint not in given]
    if missing:
        raise Malformed('missing_joint', f'{topic}: no {missing}; it has {list(names)}')
    return [given[joint] for joint in robot.action_joints]


def _of_trajectory(
    message: JointTrajectory, robot: RobotDescription, topic: str
) -> Sequence[float]:
    """Return the goal of a trajectory: its last point."""
    if not message.points:
        raise Malformed('wrong_shape', f'{topic}: a trajectory without points')
    return _by_joint(message.joint_names, message.points[-1].positions, robot, topic)


def _of_array(message: Float64MultiArray, _: RobotDescription, __: str) -> Sequence[float]:
    return list(message.data)


def _of_joint_state(message: JointState, robot: RobotDescription, topic: str) -> Sequence[float]:
    is_velocity = robot.actions[0].motion is Motion.VELOCITY
    values = message.velocity if is_velocity else message.position
    return _by_joint(message.name, values, robot, topic)


def _of_twist(message: Twist, robot: RobotDescription, _: str) -> Sequence[float]:
    places = [joint.split('.') for joint in robot.action_joints]
    return [getattr(getattr(message, part), axis) for part, axis in places]


def _of_twist_stamped(
    message: TwistStamped, robot: RobotDescription, topic: str
) -> Sequence[float]:
    return _of_twist(message.twist, robot, topic)


# by the names of robot.command_types
COMMANDS: dict[str, tuple[type, Callable[[Any, RobotDescription, str], Sequence[float]]]] = {
    'trajectory_msgs/JointTrajectory': (JointTrajectory, _of_trajectory),
    'std_msgs/Float64MultiArray': (Float64MultiArray, _of_array),
    'sensor_msgs/JointState': (JointState, _of_joint_state),
    'geometry_msgs/Twist': (Twist, _of_twist),
    'geometry_msgs/TwistStamped': (TwistStamped, _of_twist_stamped),
}
