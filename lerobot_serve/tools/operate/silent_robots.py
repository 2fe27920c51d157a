# SPDX-License-Identifier: Apache-2.0
"""Robots that publish nothing now: how they are listed, and why. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from lerobot_serve.tools.operate.fleet_state import RobotView

STOP_BY_HAND = 'if it moves, stop it at its power or its stop button'


def missing_robot(node: str, age_s: float) -> RobotView:
    """Return a robot that was found before and is not now."""
    why = 'it hangs, its link is cut, or it was stopped'
    return _silent(RobotView(node), age_s, f'not found; {why}')


def mute_robot(node: str) -> RobotView:
    """Return a robot that is found and whose state does not arrive."""
    return _silent(RobotView(node), None, 'found, and sends no state: it hangs or its link is cut')


def hung_robot(robot: RobotView, age_s: float) -> RobotView:
    """Return a robot whose last state is old and which sends no new one."""
    return _silent(robot, age_s, 'sends no new state: it hangs or its link is cut')


def unheard_robot(robot: RobotView) -> RobotView:
    """Return a robot with its last state that is not heard of, for whatever reason."""
    return _silent(robot, None, 'it ended, hangs, or is not reached')


def refusal(robot: RobotView) -> str:
    """Return why a verb that may start motion is refused on a silent robot, and what to do."""
    return (
        f'{robot.name} is {robot.edge.reason}. What it would do is not known: {STOP_BY_HAND}. '
        'Nothing was changed'
    )


def age_text(age_s: float) -> str:
    """Return an age in seconds, or in minutes from two minutes on."""
    return f'{age_s:.0f} s' if age_s < 120 else f'{age_s / 60:.0f} min'


def _silent(robot: RobotView, age_s: float | None, why: str) -> RobotView:
    since = 'silent: ' if age_s is None else f'silent for {age_text(age_s)}: '
    return RobotView(robot.node, replace(robot.edge, reason=f'{since}{why}'), True, age_s)
