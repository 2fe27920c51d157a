# SPDX-License-Identifier: Apache-2.0
"""
The message types of commands: their keys in a robot file, and the actions they can carry. Plain.

A type is a row here and one in command_messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

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


class CommandType(NamedTuple):
    """
    keys     the keys of `command` in the robot file, separated by spaces
    refusal  returns why the type cannot carry these actions; empty if it can
    """

    keys: str
    refusal: Callable[[Actions], str]


# the first is the default
COMMAND_TYPES = {
    'trajectory_msgs/JointTrajectory': CommandType(
        'topic type time_from_start_s', _check_positions
    ),
    'std_msgs/Float64MultiArray': CommandType('topic type', _accept_all),
    'sensor_msgs/JointState': CommandType('topic type', _check_one_motion),
    'geometry_msgs/Twist': CommandType('topic type', _check_twist),
    'geometry_msgs/TwistStamped': CommandType('topic type frame_id', _check_twist),
}
