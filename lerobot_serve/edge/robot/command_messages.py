# SPDX-License-Identifier: Apache-2.0
"""
Build the command message of a control step, and read the values of one that others sent. Pure
functions; the tick thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Twist, TwistStamped
import numpy as np
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import Motion
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.description import RobotDescription

CommandMessage: TypeAlias = JointTrajectory | Float64MultiArray | JointState | Twist | TwistStamped


def command_message(
    command: Float64Array, robot: RobotDescription, stamp: Time, step_s: float = 0.0
) -> CommandMessage:
    """
    Return the message of robot.command.type for one value of each action, in their order;
    `step_s` is the time to the next command; 0: the period of the policy.
    """
    return COMMAND_MESSAGES[robot.command.type].build(command, robot, stamp, step_s)


def joint_trajectory(
    command: Float64Array, robot: RobotDescription, _: Time, step_s: float
) -> JointTrajectory:
    """Return a trajectory with an empty stamp: it starts on arrival, independent of clocks."""
    due_s = robot.command.time_from_start_s or step_s or 1 / robot.fps
    seconds, nanoseconds = divmod(int(1e9 * due_s), 10**9)
    point = JointTrajectoryPoint(positions=command.tolist())
    point.time_from_start = Duration(sec=seconds, nanosec=nanoseconds)
    return JointTrajectory(joint_names=list(robot.action_joints), points=[point])


def float64_multi_array(
    command: Float64Array, _: RobotDescription, __: Time, ___: float
) -> Float64MultiArray:
    return Float64MultiArray(data=command.tolist())


def joint_state(
    command: Float64Array, robot: RobotDescription, stamp: Time, _: float
) -> JointState:
    """Return positions or velocities, as all actions are; the other fields stay empty."""
    message = JointState(name=list(robot.action_joints))
    message.header.stamp = stamp
    if robot.actions[0].motion is Motion.VELOCITY:
        message.velocity = command.tolist()
    else:
        message.position = command.tolist()
    return message


def twist(command: Float64Array, robot: RobotDescription, _: Time, __: float) -> Twist:
    """Return a twist; axes without an action stay 0."""
    message = Twist()
    for joint, value in zip(robot.action_joints, command.tolist(), strict=True):
        part, axis = joint.split('.')
        setattr(getattr(message, part), axis, value)
    return message


def twist_stamped(
    command: Float64Array, robot: RobotDescription, stamp: Time, step_s: float
) -> TwistStamped:
    message = TwistStamped(twist=twist(command, robot, stamp, step_s))
    message.header.stamp, message.header.frame_id = stamp, robot.command.frame_id
    return message


def command_values(message: Any, kind: str, robot: RobotDescription, topic: str) -> Float64Array:
    """
    Return one value for each action, in their order, of a message of the type `kind` on `topic`.
    Raises Malformed, also for a value that is not finite.
    """
    values = np.array(COMMAND_MESSAGES[kind].read(message, robot, topic), np.float64)
    if len(values) != len(robot.actions):
        raise Malformed(
            'wrong_shape', f'{topic}: {len(values)} numbers for {len(robot.actions)} actions'
        )
    check_finite(values, robot, topic)
    return values


def check_finite(values: Float64Array, robot: RobotDescription, topic: str) -> None:
    """Raise Malformed for a value that is not finite, also once it is recorded as float32."""
    with np.errstate(over='ignore'):
        finite = np.isfinite(values.astype(np.float32))
    if not finite.all():
        bad = int(finite.argmin())
        raise Malformed('not_finite', f'{topic}: {robot.actions[bad].name} is {values[bad]:g}')


def _of_joint_state(message: JointState, robot: RobotDescription, topic: str) -> Sequence[float]:
    """Return positions or velocities, as all actions are."""
    is_velocity = robot.actions[0].motion is Motion.VELOCITY
    values = message.velocity if is_velocity else message.position
    return _by_joint(message.name, values, robot, topic)


def _of_trajectory(
    message: JointTrajectory, robot: RobotDescription, topic: str
) -> Sequence[float]:
    """Return the goal of a trajectory: its last point."""
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


def _of_array(message: Float64MultiArray, _: RobotDescription, __: str) -> Sequence[float]:
    return list(message.data)


def _of_twist(message: Twist, robot: RobotDescription, _: str) -> Sequence[float]:
    places = [joint.split('.') for joint in robot.action_joints]
    return [float(getattr(getattr(message, part), axis)) for part, axis in places]


def _of_twist_stamped(
    message: TwistStamped, robot: RobotDescription, topic: str
) -> Sequence[float]:
    return _of_twist(message.twist, robot, topic)


class CommandMessages(NamedTuple):
    """
    The message class of a command type, the function that builds a message, and the one that
    returns the values of a message by robot and topic.
    """

    message_class: type[CommandMessage]
    build: Callable[[Float64Array, RobotDescription, Time, float], CommandMessage]
    read: Callable[[Any, RobotDescription, str], Sequence[float]]


# by the names of robot.command_types
COMMAND_MESSAGES = {
    'trajectory_msgs/JointTrajectory': CommandMessages(
        JointTrajectory, joint_trajectory, _of_trajectory
    ),
    'std_msgs/Float64MultiArray': CommandMessages(
        Float64MultiArray, float64_multi_array, _of_array
    ),
    'sensor_msgs/JointState': CommandMessages(JointState, joint_state, _of_joint_state),
    'geometry_msgs/Twist': CommandMessages(Twist, twist, _of_twist),
    'geometry_msgs/TwistStamped': CommandMessages(TwistStamped, twist_stamped, _of_twist_stamped),
}
