# SPDX-License-Identifier: Apache-2.0
"""Map each action to the state value that measures it. Pure functions; any thread."""

from __future__ import annotations

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.edge.robot.description import RobotDescription, StateSource

POSES = ('pose.x', 'pose.y', 'pose.z', 'pose.yaw')


def measuring_indices(robot: RobotDescription) -> tuple[int | None, ...]:
    """
    Return for each action the index of the state value that measures it.

    It is the value of the same name, otherwise of the same joint, and of the same kind (position
    or velocity). None: no value measures it, or several do.
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
    # an array does not declare what its numbers are
    return source.field in ('', action.motion.value)


def measured_values(state: Float64Array, indices: tuple[int | None, ...]) -> Float64Array:
    """
    Return the measured value of each action, in order.

    Unmeasured velocities count as 0.
    """
    return np.array([0.0 if index is None else state[index] for index in indices], np.float64)
