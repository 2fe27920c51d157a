# SPDX-License-Identifier: Apache-2.0
"""The recorded motion of an arm under one version of the policy. Plain; the owner locks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

# length and frame rate of a shown clip, and how much is recorded to choose it from
CLIP_S, FRAMES_HZ, RECORDED_S = 9.0, 12.0, 20.0
# a longer gap between two frames ends the clip
GAP_S = 1.0
# an outcome and the first frame with the next target arrive in any order, so close to each other
SETTLE_S = 0.2


@dataclass(frozen=True, slots=True)
class ArmFrame:
    """The arm at one time: its two joints [rad], and the target [m] ahead and to the left."""

    time_s: float
    shoulder_rad: float
    elbow_rad: float
    target_xy: tuple[float, float]


@dataclass(slots=True)
class ArmClip:
    """The first RECORDED_S of one robot under one version without a gap, with the outcomes."""

    frames: list[ArmFrame] = field(default_factory=list)
    # time, and whether the target was reached
    outcomes: list[tuple[float, bool]] = field(default_factory=list)

    def add(self, frame: ArmFrame) -> None:
        """Add a frame; frames above the frame rate are skipped."""
        since_s = frame.time_s - self.frames[-1].time_s if self.frames else GAP_S
        if since_s < 0.9 / FRAMES_HZ or self.is_full:
            return
        if self.frames and since_s > GAP_S:
            # keep a clip of at least half the length instead of starting another one
            if self.length_s >= CLIP_S / 2:
                return
            self.frames, self.outcomes = [], []
        self.frames.append(frame)

    def add_outcome(self, time_s: float, success: bool) -> None:
        """Add an outcome; one outside the clip is skipped."""
        if self.frames and time_s <= self.frames[-1].time_s + SETTLE_S:
            self.outcomes.append((time_s, success))

    def windows(self) -> Iterator[ArmClip]:
        """Yield the clips of at most CLIP_S that begin with a target."""
        before = None
        for number, frame in enumerate(self.frames):
            if frame.target_xy != before:
                yield self._window(number)
            before = frame.target_xy

    def _window(self, first: int) -> ArmClip:
        begin_s = self.frames[first].time_s
        frames = [each for each in self.frames[first:] if each.time_s - begin_s <= CLIP_S]
        begin_s, end_s = begin_s + SETTLE_S, frames[-1].time_s + SETTLE_S
        return ArmClip(frames, [each for each in self.outcomes if begin_s < each[0] <= end_s])

    def likeness(self, success_rate: float) -> tuple[bool, float, float]:
        """
        Return the sort key of clips of a version, the most like all its episodes last: at least
        half the length, then a success rate near to that of all, then the length.
        """
        reached = sum(success for _, success in self.outcomes)
        own = reached / len(self.outcomes) if self.outcomes else 2.0
        return self.length_s >= CLIP_S / 2, -abs(own - success_rate), self.length_s

    @property
    def is_full(self) -> bool:
        return self.length_s >= RECORDED_S

    @property
    def length_s(self) -> float:
        return self.frames[-1].time_s - self.frames[0].time_s if self.frames else 0.0
