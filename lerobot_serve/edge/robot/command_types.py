# SPDX-License-Identifier: Apache-2.0
"""
The message types of commands, and the actions that they can carry. Plain.

A type is a row here and one in command_messages.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.cage.description import ActionLimit, Motion

TWIST_FIELDS = tuple(f'{part}.{axis}' for part in ('linear', 'angular') for axis in 'xyz')

Actions = tuple[ActionLimit, ...]


def _accept_all(_: Actions) -> str:
    return ''


def _check_positions(actions: Actions) -> str:
    if _motions(actions) == {Motion.POSITION}:
        return ''
    return 'takes positions only; all actions must be positions'


def _check_one_motion(actions: Actions) -> str:
    return 'takes positions or velocities, not both' if len(_motions(actions)) > 1 else ''


def _check_twist(actions: Actions) -> str:
    if _motions(actions) != {Motion.VELOCITY}:
        return 'takes velocities only; give every action `motion: velocity`'
    unknown = [action.joint for action in actions if action.joint not in TWIST_FIELDS]
    if unknown:
        return (
            f'has no {unknown[0]!r}; the joint of every action must be one of '
            f'{", ".join(TWIST_FIELDS)}'
        )
    return ''


def _motions(actions: Actions) -> set[Motion]:
    return {action.motion for action in actions}


# the first is the default; each says why it cannot carry these actions, empty if it can
COMMAND_TYPES: dict[str, Callable[[Actions], str]] = {
    'trajectory_msgs/JointTrajectory': _check_positions,
    'std_msgs/Float64MultiArray': _accept_all,
    'sensor_msgs/JointState': _check_one_motion,
    'geometry_msgs/Twist': _check_twist,
    'geometry_msgs/TwistStamped': _check_twist,
}
