# SPDX-License-Identifier: Apache-2.0
"""Names, colours and widths of curves and states. Plain data; any thread."""

from __future__ import annotations

from typing import NamedTuple

from lerobot_serve.tools.rerun_view.mapping.entries import JOINTS, Path, PLAN, STATES

GREY, ORANGE, BLUE, GREEN = (150, 150, 150), (230, 120, 30), (40, 120, 230), (40, 160, 80)
AMBER, RED, VIOLET = (240, 180, 40), (215, 50, 50), (150, 90, 200)

Color = tuple[int, int, int]


class CurveStyle(NamedTuple):
    """How a curve is drawn; the width is in points of the screen."""

    name: str
    color: Color
    width: float


JOINT_STYLES = {
    'measured': CurveStyle('measured', GREEN, 1.5),
    'wanted': CurveStyle('wanted by the policy', ORANGE, 1.5),
    'commanded': CurveStyle('commanded', BLUE, 2.0),
    PLAN: CurveStyle('planned', GREY, 0.75),
}
# state -> value -> colour; values of other states get colours from the viewer
STATE_COLORS: dict[str, dict[str, Color]] = {
    'cage': {'pass': GREEN, 'clamped': AMBER, 'held': ORANGE, 'stopped': RED},
    'ladder': {
        'policy': GREEN,
        'ramp': AMBER,
        'hold': AMBER,
        'repeat_last': AMBER,
        'zero': ORANGE,
        'safe_pose': ORANGE,
        'initial_pose': ORANGE,
        'person': VIOLET,
        'stop_service': RED,
        'no_command': GREY,
    },
    'connection': {
        'connecting': GREY,
        'streaming': GREEN,
        'degraded': AMBER,
        'stalled': ORANGE,
        'reconnecting': ORANGE,
        'dead': RED,
    },
    'paused': {'paused': VIOLET},
    'slot': {'a': BLUE, 'b': ORANGE, 'prod': GREEN},
}


def curve_style(path: Path) -> CurveStyle | None:
    """Return the style of the curve of a joint; None for other curves."""
    if path[2:3] != (JOINTS,):
        return None
    return JOINT_STYLES.get(path[4])


def state_colors(path: Path) -> dict[str, Color]:
    """Return the colours of the values of a state; empty for one without."""
    return STATE_COLORS.get(path[3], {}) if path[2:3] == (STATES,) else {}
