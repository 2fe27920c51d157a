# SPDX-License-Identifier: Apache-2.0
"""
The arm under each version, side by side, as a short SVG animation that needs no script. Pure.

Seen from above: the joint that turns the first link, and the one that turns the second. A panel
repeats its recorded clip: the arm, the target, the trace of the hand since the target appeared,
and at the end of an episode a ring around the target, green when it was reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
import math

from lerobot_serve.demo.results.scoreboard import ArmClip, ArmFrame
from lerobot_serve.sim.arm import FORE_LINK_M, UPPER_LINK_M

PANEL_WIDTH, PANEL_HEIGHT, HEADER_HEIGHT, FOOTER_HEIGHT = 280, 232, 28, 26
# wide enough for an arm stretched to one side, and high enough for one that folds backwards
SCALE = (PANEL_WIDTH / 2 - 10) / (UPPER_LINK_M + FORE_LINK_M)
BASE_X, BASE_Y = PANEL_WIDTH / 2, HEADER_HEIGHT + 138.0
# how long a ring shows the end of an episode
RING_S = 0.7
# a picture has a background of its own, so that it is read on any page
STYLE = """
.page { fill: #f6f8fa } .text { fill: #1f2328 } .weak { fill: #57606a } .base { fill: #57606a }
.link { stroke: #1f6fb4 } .hand { fill: #1f2328 } .target { fill: #cf222e }
.trace { stroke: #bc5a0c } .good { stroke: #1a7f37 } .bad { stroke: #cf222e }
@media (prefers-color-scheme: dark) {
.page { fill: #151b23 } .text { fill: #e6edf3 } .weak { fill: #9198a1 } .base { fill: #9198a1 }
.link { stroke: #58a6ff } .hand { fill: #e6edf3 } .target { fill: #f85149 }
.trace { stroke: #e3a04c } .good { stroke: #3fb950 } .bad { stroke: #f85149 } }
"""


@dataclass(frozen=True, slots=True)
class Timing:
    """The period of the animation, which all panels share, and the begin of a clip."""

    begin_s: float
    length_s: float

    def part(self, time_s: float) -> float:
        """Return a time as a part of the period, in [0, 1]."""
        return min(1.0, max(0.0, (time_s - self.begin_s) / self.length_s))

    @property
    def attributes(self) -> str:
        return f'dur="{self.length_s:.2f}s" repeatCount="indefinite"'

    def animate(self, name: str, times: Sequence[float], values: Sequence[str]) -> str:
        """Return an animation between values at parts of the period; the last one stays."""
        shown = [*times, 1.0] if times[-1] < 1 else list(times)
        kept = [*values, values[-1]] if times[-1] < 1 else list(values)
        return (
            f'<animate attributeName="{name}" values="{";".join(kept)}" '
            f'keyTimes="{";".join(f"{each:.4f}" for each in shown)}" {self.attributes}/>'
        )

    def visible(self, begin_s: float, end_s: float) -> str:
        """Return the animation of an element that is shown for a time only."""
        begin, end = self.part(begin_s), self.part(end_s)
        times, values = [0.0, begin, end], ['0', '1', '0']
        if begin <= 0:
            times, values = [0.0, end], ['1', '0']
        if end >= 1:
            times, values = times[:-1], values[:-1]
        return (
            f'<animate attributeName="opacity" values="{";".join(values)}" calcMode="discrete" '
            f'keyTimes="{";".join(f"{each:.4f}" for each in times)}" {self.attributes}/>'
        )


def arm_animation(clips: Mapping[str, ArmClip]) -> str:
    """Return one picture with a panel for each version, or a note that it controlled no robot."""
    length_s = max((clip.length_s for clip in clips.values()), default=0.0) or 1.0
    panels = ''.join(
        f'<g transform="translate({number * PANEL_WIDTH} 0)">{_panel(version, clip, length_s)}</g>'
        for number, (version, clip) in enumerate(clips.items())
    )
    width = PANEL_WIDTH * max(1, len(clips))
    height = HEADER_HEIGHT + PANEL_HEIGHT + FOOTER_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="The arm under each version, seen from above" class="arms" '
        f'font-family="system-ui, sans-serif" font-size="14"><style>{STYLE}</style>'
        f'<rect width="{width}" height="{height}" rx="8" class="page"/>{panels}</svg>'
    )


def _panel(version: str, clip: ArmClip, length_s: float) -> str:
    title = (
        f'<text x="{BASE_X}" y="20" text-anchor="middle" font-weight="600" class="text">'
        f'{escape(version)}</text>'
    )
    frames = clip.frames
    if len(frames) < 2:
        return (
            f'{title}<text x="{BASE_X}" y="{BASE_Y / 2}" text-anchor="middle" class="weak">'
            'no robot controlled</text>'
        )
    timing = Timing(frames[0].time_s, length_s)
    return f'{title}{_episodes(clip, timing)}{_arm(frames, timing)}{_result(clip)}'


def _result(clip: ArmClip) -> str:
    """Return what the clip shows, in words."""
    reached, of = sum(success for _, success in clip.outcomes), len(clip.outcomes)
    text = f'reached {reached} of {of} targets' if of else 'no episode ended'
    y = HEADER_HEIGHT + PANEL_HEIGHT + FOOTER_HEIGHT - 9
    return f'<text x="{BASE_X}" y="{y}" text-anchor="middle" class="weak">{text}</text>'


def _arm(frames: Sequence[ArmFrame], timing: Timing) -> str:
    upper, fore = UPPER_LINK_M * SCALE, FORE_LINK_M * SCALE
    # angles increase to the left, in SVG to the right; forward is up
    shoulder = [-math.degrees(frame.shoulder_rad) for frame in frames]
    elbow = [-math.degrees(frame.elbow_rad) for frame in frames]
    times = [timing.part(frame.time_s) for frame in frames]
    return (
        f'<g transform="translate({BASE_X} {BASE_Y})"><circle r="8" class="base"/>'
        f'{_turning(shoulder, times, timing)}<line y2="{-upper:.1f}" class="link" '
        'stroke-width="8" stroke-linecap="round"/>'
        f'<g transform="translate(0 {-upper:.1f})">{_turning(elbow, times, timing)}'
        f'<line y2="{-fore:.1f}" class="link" stroke-width="6" '
        f'stroke-linecap="round"/><circle cy="{-fore:.1f}" r="5" class="hand"/></g></g></g></g>'
    )


def _turning(degrees: Sequence[float], times: Sequence[float], timing: Timing) -> str:
    """Return the start of a group that turns; viewers without animation show its first angle."""
    values = [f'{each:.1f}' for each in degrees]
    animation = timing.animate('transform', times, values)
    animation = animation.replace('<animate ', '<animateTransform type="rotate" ')
    return f'<g transform="rotate({degrees[0]:.1f})">{animation}'


def _episodes(clip: ArmClip, timing: Timing) -> str:
    """Return target, trace of the hand and result of each episode, each shown in its time."""
    return ''.join(
        _episode(episode, end_s, clip.outcomes, timing) for episode, end_s in episodes(clip.frames)
    )


def episodes(frames: Sequence[ArmFrame]) -> Iterator[tuple[list[ArmFrame], float]]:
    """Yield the frames with one target, and when the next target appears."""
    groups = [list(group) for _, group in groupby(frames, key=lambda frame: frame.target_xy)]
    for number, group in enumerate(groups):
        following = groups[number + 1][0].time_s if number + 1 < len(groups) else math.inf
        yield group, following


def _episode(
    frames: Sequence[ArmFrame],
    end_s: float,
    outcomes: Sequence[tuple[float, bool]],
    timing: Timing,
) -> str:
    begin_s = frames[0].time_s
    x, y = place(*frames[0].target_xy)
    target = (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" class="target" '
        f'opacity="{int(begin_s <= timing.begin_s)}">{timing.visible(begin_s, end_s)}</circle>'
    )
    # an outcome comes just before the next target
    ended = [(at_s, good) for at_s, good in outcomes if abs(at_s - end_s) < RING_S]
    rings = ''.join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="15" fill="none" stroke-width="4" opacity="0" '
        f'class="{"good" if good else "bad"}">{timing.visible(at_s, at_s + RING_S)}</circle>'
        for at_s, good in ended
    )
    return f'{target}{_trace(frames, end_s, timing)}{rings}'


def _trace(frames: Sequence[ArmFrame], end_s: float, timing: Timing) -> str:
    """Return the path of the hand, drawn as the hand moves."""
    points = [hand_place(frame) for frame in frames]
    lengths = [0.0]
    for one, two in pairwise(points):
        lengths.append(lengths[-1] + math.dist(one, two))
    if lengths[-1] < 1:
        return ''
    path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in points)
    times = [0.0, *(timing.part(frame.time_s) for frame in frames)]
    # all of it is hidden first, then nothing at its end
    hidden = ['1', *(f'{1 - length / lengths[-1]:.3f}' for length in lengths)]
    return (
        f'<polyline points="{path}" fill="none" class="trace" stroke-width="2" opacity="0" '
        f'pathLength="1" stroke-dasharray="1">{timing.visible(frames[0].time_s, end_s)}'
        f'{timing.animate("stroke-dashoffset", times, hidden)}</polyline>'
    )


def place(ahead_m: float, left_m: float) -> tuple[float, float]:
    """Return a position in a panel."""
    return BASE_X - left_m * SCALE, BASE_Y - ahead_m * SCALE


def hand_place(frame: ArmFrame) -> tuple[float, float]:
    """Return the position of the hand in a panel."""
    first, second = frame.shoulder_rad, frame.shoulder_rad + frame.elbow_rad
    return place(
        UPPER_LINK_M * math.cos(first) + FORE_LINK_M * math.cos(second),
        UPPER_LINK_M * math.sin(first) + FORE_LINK_M * math.sin(second),
    )
