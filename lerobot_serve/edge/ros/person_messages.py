# SPDX-License-Identifier: Apache-2.0
"""
Decode what a person sends: the command of a leader arm or a joystick, and the deadman's button.

Pure functions; the tick thread. They raise Malformed for unusable messages. The module is a
PersonMessages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geometry_msgs.msg import Twist, TwistStamped
import numpy as np
from sensor_msgs.msg import JointState, Joy
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.intervention import InterventionInput, JOY
from lerobot_serve.edge.takeover.target import PersonTarget
from lerobot_serve.ros.topics.checked_subscription import decode_message
from lerobot_serve.wire.errors import Malformed

# type name in a robot file -> message class
PERSON_MESSAGE_TYPES: dict[str, type] = {
    'sensor_msgs/JointState': JointState,
    'trajectory_msgs/JointTrajectory': JointTrajectory,
    'std_msgs/Float64MultiArray': Float64MultiArray,
    'geometry_msgs/Twist': Twist,
    'geometry_msgs/TwistStamped': TwistStamped,
    JOY: Joy,
}


def person_target(raw: bytes, robot: RobotDescription) -> PersonTarget:
    """Return the target, one value for each action."""
    device = robot.intervention
    if device is None:
        raise ValueError('the robot has no intervention')
    message = decode_message(raw, PERSON_MESSAGE_TYPES[device.type], device.topic)
    if device.type == JOY:
        values = _rates(message, robot, device)
    else:
        values = np.array(READERS[device.type](message, robot, device.topic), np.float64)
    # a step is computed in float64, sent and recorded as float32
    with np.errstate(over='ignore'):
        finite = np.isfinite(values.astype(np.float32))
    if not finite.all():
        bad = int(finite.argmin())
        raise Malformed(
            'not_finite', f'{device.topic}: {robot.actions[bad].name} is {values[bad]:g}'
        )
    return PersonTarget(values, is_rate=device.type == JOY)


def is_button_pressed(raw: bytes, topic: str, button: int) -> bool:
    """Return whether a button of a sensor_msgs/Joy is pressed."""
    message = decode_message(raw, Joy, topic)
    if button >= len(message.buttons):
        raise Malformed(
            'wrong_shape', f'{topic}: no button {button}; there are {len(message.buttons)}'
        )
    return bool(message.buttons[button])


def _rates(message: Joy, robot: RobotDescription, device: InterventionInput) -> Float64Array:
    """Return the rates of all actions; those without an axis stay."""
    rates = dict.fromkeys((action.name for action in robot.actions), 0.0)
    for each in device.axes:
        if each.axis >= len(message.axes):
            raise Malformed(
                'wrong_shape',
                f'{device.topic}: no axis {each.axis}; there are {len(message.axes)}',
            )
        rates[each.action] = each.scale * message.axes[each.axis]
    return np.array(list(rates.values()), np.float64)


def _joint_state(message: JointState, robot: RobotDescription, topic: str) -> Sequence[float]:
    """Return positions or velocities, as all actions are."""
    is_velocity = robot.actions[0].motion is Motion.VELOCITY
    values = message.velocity if is_velocity else message.position
    return _by_joint(message.name, values, robot, topic)


def _joint_trajectory(
    message: JointTrajectory, robot: RobotDescription, topic: str
) -> Sequence[float]:
    """Return the end of a trajectory: the robot follows at its own limits."""
    if not message.points:
        raise Malformed('wrong_shape', f'{topic}: a trajectory without points')
    return _by_joint(message.joint_names, message.points[-1].positions, robot, topic)


def _by_joint(
    names: Sequence[str], values: Sequence[float], robot: RobotDescription, topic: str
) -> Sequence[float]:
    if len(values) != len(names):
        raise Malformed('wrong_shape', f'{topic}: {len(names)} names and {len(values)} values')
    known = dict(zip(names, values, strict=True))
    if len(known) != len(names):
        raise Malformed('doubled_joint', f'{topic}: duplicate joint in {list(names)}')
    missing = [joint for joint in robot.action_joints if joint not in known]
    if missing:
        raise Malformed('missing_joint', f'{topic}: no {missing}; it has {list(names)}')
    return [known[joint] for joint in robot.action_joints]


def _array(message: Float64MultiArray, robot: RobotDescription, topic: str) -> Sequence[float]:
    if len(message.data) != len(robot.actions):
        raise Malformed(
            'wrong_shape', f'{topic}: {len(message.data)} numbers for {len(robot.actions)} actions'
        )
    return list(message.data)


def _twist(message: Twist, robot: RobotDescription, _: str) -> Sequence[float]:
    return [
        float(getattr(getattr(message, part), axis))
        for part, axis in (joint.split('.') for joint in robot.action_joints)
    ]


def _twist_stamped(message: TwistStamped, robot: RobotDescription, topic: str) -> Sequence[float]:
    return _twist(message.twist, robot, topic)


READERS: dict[str, Callable[[Any, RobotDescription, str], Sequence[float]]] = {
    'sensor_msgs/JointState': _joint_state,
    'trajectory_msgs/JointTrajectory': _joint_trajectory,
    'std_msgs/Float64MultiArray': _array,
    'geometry_msgs/Twist': _twist,
    'geometry_msgs/TwistStamped': _twist_stamped,
}
