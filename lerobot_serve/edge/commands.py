"""What the robot is told, as a message. Pure functions; the tick thread calls them."""

from __future__ import annotations

from builtin_interfaces.msg import Duration
import numpy as np
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from lerobot_serve.edge.robot import Robot


def joint_trajectory(command: np.ndarray, robot: Robot) -> JointTrajectory:
    """Return the command of one control step, to be reached by the next."""
    seconds, nanoseconds = divmod(int(1e9 / robot.fps), 10**9)
    point = JointTrajectoryPoint(positions=command.tolist())
    point.time_from_start = Duration(sec=seconds, nanosec=nanoseconds)
    return JointTrajectory(joint_names=list(robot.action_joints), points=[point])
