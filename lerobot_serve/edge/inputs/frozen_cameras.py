# SPDX-License-Identifier: Apache-2.0
"""
Detects cameras that repeat one frame while the robot moves. The request thread.

A hanging driver may keep publishing its last frame: no input is late, and the policy uses an old
image. Two frames of a real sensor never have equal bytes. A simulated camera repeats frames while
the robot stands, hence the second condition. Plain.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float64Array

# in sensor_msgs/Image and CompressedImage the encapsulation and the stamp come first
STAMP_END_BYTE = 12
# a slow camera is not frozen: at least this many messages must have the same frame
MIN_REPEATS = 5
# in the units of the state: above the noise of a sensor, below any motion of a task
MIN_MOTION = 0.01


@dataclass(slots=True)
class _Frame:
    """
    The latest message of a camera, and the time and robot state of its first identical frame.
    """

    raw: bytes
    since_ns: int
    state: Float64Array
    repeats: int = 0
    has_moved: bool = False


class FrozenCameraDetector:
    """Checks the newest frames; `after_s` 0 disables it."""

    def __init__(self, after_s: float) -> None:
        self.after_s = after_s
        self._frames: dict[str, _Frame] = {}

    def poll(self, now_ns: int, state: Float64Array, raws: dict[str, bytes]) -> list[str]:
        """Process the newest message of each camera; return the frozen ones."""
        if not self.after_s:
            return []
        return [name for name, raw in raws.items() if self._is_frozen(name, raw, now_ns, state)]

    def _is_frozen(self, name: str, raw: bytes, now_ns: int, state: Float64Array) -> bool:
        known = self._frames.get(name)
        if known is None or not (raw is known.raw or is_same_frame(raw, known.raw)):
            self._frames[name] = _Frame(raw, now_ns, state)
            return False
        if raw is not known.raw:
            known.repeats += 1
            known.raw = raw
        known.has_moved |= bool(np.abs(state - known.state).max(initial=0.0) > MIN_MOTION)
        is_long = now_ns - known.since_ns >= 1e9 * self.after_s
        return is_long and known.repeats >= MIN_REPEATS and known.has_moved


def is_same_frame(one: bytes, other: bytes) -> bool:
    """Return whether two messages differ only in their stamps."""
    if len(one) != len(other):
        return False
    if len(one) <= STAMP_END_BYTE:
        return one == other
    first, second = (np.frombuffer(raw, np.uint8, offset=STAMP_END_BYTE) for raw in (one, other))
    return np.array_equal(first, second)
