# SPDX-License-Identifier: Apache-2.0
"""
The arm under each version, side by side, as a short SVG animation that needs no script. Pure.

Seen from above: the joint that turns the first link, and the one that turns the second. Recorded
while the demo runs, from the joint states and targets of its own robots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
import math

from lerobot_serve.sim.arm import FORE_LINK_M, UPPER_LINK_M

# length and frame rate of the clip of each version
CLIP_S, FRAMES_HZ = 9.0, 10.0
# a longer gap between two frames ends the clip
GAP_S = 1.0
PANEL_WIDTH, PANEL_HEIGHT, HEADER_HEIGHT = 320, 210, 24
# wide enough for an arm stretched to one side
SCALE = (PANEL_WIDTH / 2 - 10) / (UPPER_LINK_M + FORE_LINK_M)
BASE_X, BASE_Y = PANEL_WIDTH / 2, PANEL_HEIGHT - 10.0
COLOUR, TARGET = '#1f6fb4', '#d62728'


@dataclass(frozen=True, slots=True)
class ArmFrame:
    """The arm at one time: its two joints [rad], and the target [m] ahead and to the left."""

    time_s: float
    shoulder_rad: float
    elbow_rad: float
    target_xy: tuple[float, float]


class ArmClip:
    """The last CLIP_S of one robot under one version, without gaps. One thread."""

    def __init__(self) -> None:
        self.frames: list[ArmFrame] = []

    def add(self, frame: ArmFrame) -> None:
        """Add a frame; frames above the frame rate are skipped."""
        if self.frames and frame.time_s - self.frames[-1].time_s < 0.9 / FRAMES_HZ:
            return
        if self.frames and frame.time_s - self.frames[-1].time_s > GAP_S:
            # keep a clip of full length instead of starting another one
            if len(self.frames) >= CLIP_S * FRAMES_HZ / 2:
                return
            self.frames = []
        if self.length_s < CLIP_S:
            self.frames.append(frame)

    @property
    def length_s(self) -> float:
        return self.frames[-1].time_s - self.frames[0].time_s if self.frames else 0.0


def arm_animation(clips: Mapping[str, Sequence[ArmFrame]]) -> str:
    """Return one picture with a panel for each version, or a note that it controlled no robot."""
    panels = ''.join(
        f'<g transform="translate({number * PANEL_WIDTH} 0)">{_panel(version, frames)}</g>'
        for number, (version, frames) in enumerate(clips.items())
    )
    width, height = PANEL_WIDTH * max(1, len(clips)), PANEL_HEIGHT + HEADER_HEIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'aria-label="The arm under each version, seen from above" '
        f'font-family="system-ui, sans-serif" font-size="13">'
        f'<rect width="{width}" height="{height}" fill="#fff"/>{panels}</svg>'
    )


def _panel(version: str, frames: Sequence[ArmFrame]) -> str:
    title = f'<text x="{BASE_X}" y="16" text-anchor="middle" fill="#222">{escape(version)}</text>'
    if len(frames) < 2:
        return (
            f'{title}<text x="{BASE_X}" y="{BASE_Y / 2}" text-anchor="middle" fill="#777">'
            'no robot controlled</text>'
        )
    length_s = frames[-1].time_s - frames[0].time_s
    times = ';'.join(f'{(f.time_s - frames[0].time_s) / length_s:.4f}' for f in frames)
    how = f'dur="{length_s:.2f}s" keyTimes="{times}" repeatCount="indefinite"'
    upper, fore = UPPER_LINK_M * SCALE, FORE_LINK_M * SCALE
    # angles increase to the left, in SVG to the right; forward is up
    shoulder = [-math.degrees(f.shoulder_rad) for f in frames]
    elbow = [-math.degrees(f.elbow_rad) for f in frames]
    return (
        f'{title}{_target(frames, how)}'
        f'<g transform="translate({BASE_X} {BASE_Y})"><circle r="8" fill="#444"/>'
        f'{_turning(shoulder, how)}<line y2="{-upper:.1f}" class="link" stroke="{COLOUR}" '
        'stroke-width="8" stroke-linecap="round"/>'
        f'<g transform="translate(0 {-upper:.1f})">{_turning(elbow, how)}'
        f'<line y2="{-fore:.1f}" class="link" stroke="{COLOUR}" stroke-width="6" '
        f'stroke-linecap="round"/><circle cy="{-fore:.1f}" r="5" fill="#222"/></g></g></g></g>'
    )


def _turning(degrees: Sequence[float], how: str) -> str:
    """Return the start of a group that turns; viewers without animation show its first angle."""
    values = ';'.join(f'{each:.1f}' for each in degrees)
    return (
        f'<g transform="rotate({degrees[0]:.1f})">'
        f'<animateTransform attributeName="transform" type="rotate" values="{values}" {how}/>'
    )


def _target(frames: Sequence[ArmFrame], how: str) -> str:
    xs = [f'{BASE_X - f.target_xy[1] * SCALE:.1f}' for f in frames]
    ys = [f'{BASE_Y - f.target_xy[0] * SCALE:.1f}' for f in frames]
    return (
        f'<circle cx="{xs[0]}" cy="{ys[0]}" r="9" fill="{TARGET}" fill-opacity="0.8">'
        f'<animate attributeName="cx" values="{";".join(xs)}" calcMode="discrete" {how}/>'
        f'<animate attributeName="cy" values="{";".join(ys)}" calcMode="discrete" {how}/></circle>'
    )
