# SPDX-License-Identifier: Apache-2.0
"""
Detects that a holding robot was moved by hand, so that it does not return to the old pose.

A joint under load also differs from its command. So the criterion is an increase of the offset
since the hold began: by more than the least of `max_lead`, MOVED_STEPS steps and MOVED_SHARE of
its range. Plain; the tick thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.limits import MotionLimits

MOVED_SHARE, MOVED_STEPS = 0.1, 10


class ManualMoveDetector:
    """Tracks the offset of each joint during a hold."""

    def __init__(self, limits: MotionLimits) -> None:
        spans = np.minimum(MOVED_SHARE * (limits.high - limits.low), MOVED_STEPS * limits.max_step)
        allowed = np.minimum(spans, limits.max_lead)
        self._allowed = np.where(limits.is_velocity, np.inf, allowed)
        self._smallest_offset: Float64Array | None = None

    def reset(self) -> None:
        """End the hold."""
        self._smallest_offset = None

    def was_moved(self, commanded: Float64Array, agreed: Float64Array | None) -> bool:
        """
        Return whether the robot was moved; `agreed` is the position that several samples agree on,
        or None.
        """
        if agreed is None:
            return False
        offset = abs(agreed - commanded)
        self._smallest_offset = (
            offset if self._smallest_offset is None else np.minimum(self._smallest_offset, offset)
        )
        return bool((offset - self._smallest_offset > self._allowed).any())
