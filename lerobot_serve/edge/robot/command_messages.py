# SPDX-License-Identifier: Apache-2.0
"""Build the command message of a control step. Pure functions; the tick thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Twist, TwistStamped
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import Motion
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


class CommandMessages(NamedTuple):
    """The message class of a command type, and the function that builds a message."""

    message_class: type[CommandMessage]
    build: Callable[[Float64Array, RobotDescription, Time, float], CommandMessage]


# by the names of robot.command_types
COMMAND_MESSAGES = {
    'trajectory_msgs/JointTrajectory': CommandMessages(JointTrajectory, joint_trajectory),
    'std_msgs/Float64MultiArray': CommandMessages(Float64MultiArray, float64_multi_array),
    'sensor_msgs/JointState': CommandMessages(JointState, joint_state),
    'geometry_msgs/Twist': CommandMessages(Twist, twist),
    'geometry_msgs/TwistStamped': CommandMessages(TwistStamped, twist_stamped),
}
