# SPDX-License-Identifier: Apache-2.0
"""Build the command message of a control step. Pure functions; the tick thread."""

from __future__ import annotations

from typing import Any

from builtin_interfaces.msg import Duration, Time
from geometry_msgs.msg import Twist, TwistStamped
import numpy as np
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64MultiArray
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.robot.description import RobotDescription

# CommandOutput.type -> message class
COMMAND_TYPES: dict[str, type] = {
    'trajectory_msgs/JointTrajectory': JointTrajectory,
    'std_msgs/Float64MultiArray': Float64MultiArray,
    'sensor_msgs/JointState': JointState,
    'geometry_msgs/Twist': Twist,
    'geometry_msgs/TwistStamped': TwistStamped,
}


def command_message(
    command: np.ndarray, robot: RobotDescription, stamp: Time, step_s: float = 0.0
) -> Any:
    """
    Return the message of robot.command.type for one value of each action, in their order;
    `step_s` is the time to the next command, one row of the policy where it is 0.
    """
    if robot.command.type == 'trajectory_msgs/JointTrajectory':
        return joint_trajectory(command, robot, step_s or 1 / robot.fps)
    return MESSAGE_BUILDERS[robot.command.type](command, robot, stamp)


def joint_trajectory(
    command: np.ndarray, robot: RobotDescription, step_s: float
) -> JointTrajectory:
    """Return a trajectory with an empty stamp: it starts on arrival, independent of clocks."""
    due_s = robot.command.time_from_start_s or step_s
    seconds, nanoseconds = divmod(int(1e9 * due_s), 10**9)
    point = JointTrajectoryPoint(positions=command.tolist())
    point.time_from_start = Duration(sec=seconds, nanosec=nanoseconds)
    return JointTrajectory(joint_names=list(robot.action_joints), points=[point])


def float64_multi_array(command: np.ndarray, _: RobotDescription, __: Time) -> Float64MultiArray:
    return Float64MultiArray(data=command.tolist())


def joint_state(command: np.ndarray, robot: RobotDescription, stamp: Time) -> JointState:
    """Return positions or velocities, as all actions are; the other fields stay empty."""
    message = JointState(name=list(robot.action_joints))
    message.header.stamp = stamp
    if robot.actions[0].motion is Motion.VELOCITY:
        message.velocity = command.tolist()
    else:
        message.position = command.tolist()
    return message


def twist(command: np.ndarray, robot: RobotDescription, _: Time) -> Twist:
    """Return a twist; axes without an action stay 0."""
    message = Twist()
    for joint, value in zip(robot.action_joints, command.tolist(), strict=True):
        part, axis = joint.split('.')
        setattr(getattr(message, part), axis, value)
    return message


def twist_stamped(command: np.ndarray, robot: RobotDescription, stamp: Time) -> TwistStamped:
    message = TwistStamped(twist=twist(command, robot, stamp))
    message.header.stamp, message.header.frame_id = stamp, robot.command.frame_id
    return message


MESSAGE_BUILDERS = {
    'std_msgs/Float64MultiArray': float64_multi_array,
    'sensor_msgs/JointState': joint_state,
    'geometry_msgs/Twist': twist,
    'geometry_msgs/TwistStamped': twist_stamped,
}
