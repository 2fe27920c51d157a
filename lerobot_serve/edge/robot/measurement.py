"""Where each action's joint is, out of the values of the state. Pure functions; any thread."""

from __future__ import annotations

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.edge.robot.description import RobotDescription, StateSource

POSES = ('pose.x', 'pose.y', 'pose.z', 'pose.yaw')


def measuring_indices(robot: RobotDescription) -> tuple[int | None, ...]:
    """
    Return for each action which value of the state measures it.

    That is the value of the same name, otherwise the one of the same joint; both only where it is
    what the action is, a position or a velocity. None: nothing measures it, or several do.
    """
    return tuple(_measuring(action, robot) for action in robot.actions)


def _measuring(action: ActionLimit, robot: RobotDescription) -> int | None:
    fields = [(source, field) for source in robot.state for field in source.fields]
    fitting = [i for i, (source, field) in enumerate(fields) if _fits(action, source, field)]
    named = [i for i in fitting if robot.own_state_names[i] == action.name]
    jointed = [i for i in fitting if fields[i][1] == action.joint]
    found = named or jointed
    return found[0] if len(found) == 1 else None


def _fits(action: ActionLimit, source: StateSource, field: str) -> bool:
    if source.type == 'nav_msgs/Odometry':
        return (action.motion is Motion.POSITION) == (field in POSES)
    # an array does not say what its numbers are
    return source.field in ('', action.motion.value)


def measured_values(state: np.ndarray, indices: tuple[int | None, ...]) -> np.ndarray:
    """
    Return what the actions are about, as it is now, in their order.

    Nothing measures some velocities; they count as 0, as of a robot that stands.
    """
    return np.array([0.0 if index is None else state[index] for index in indices], np.float64)
