# SPDX-License-Identifier: Apache-2.0
"""Robots that publish nothing now: how they are listed, and why. Pure functions."""

from __future__ import annotations

from msgspec.structs import replace

from lerobot_serve.tools.operate.fleet_state import RobotView

STOP_BY_HAND = 'if it moves, stop it at its power or its stop button'


# why a robot is silent: it was found before and is not now; it is found and its state does not
# arrive; its last state is old and no new one comes; it is not heard of, for whatever reason
MISSING = 'not found; it hangs, its link is cut, or it was stopped'
MUTE = 'found, and sends no state: it hangs or its link is cut'
HUNG = 'sends no new state: it hangs or its link is cut'
UNHEARD = 'it ended, hangs, or is not reached'


def silent(robot: RobotView, why: str, age_s: float | None = None) -> RobotView:
    """Return a robot, with its last state, as one that is silent for so long, if that is known."""
    since = 'silent: ' if age_s is None else f'silent for {age_text(age_s)}: '
    return RobotView(robot.node, replace(robot.edge, reason=f'{since}{why}'), True, age_s)


def refusal(robot: RobotView) -> str:
    """Return why a verb that may start motion is refused on a silent robot, and what to do."""
    return (
        f'{robot.name} is {robot.edge.reason}. What it would do is not known: {STOP_BY_HAND}. '
        'Nothing was changed'
    )


def age_text(age_s: float) -> str:
    """Return an age in seconds, or in minutes from two minutes on."""
    return f'{age_s:.0f} s' if age_s < 120 else f'{age_s / 60:.0f} min'
