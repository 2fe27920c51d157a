"""
Whether a robot that holds was moved by hand: it must not spring back to the old pose.

A joint that holds something stands away from what is commanded, too. So what counts is that it
went further away since the hold began: by more than `max_lead`, MOVED_STEPS steps or MOVED_SHARE
of its range, whichever is least. Plain; the tick thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.cage.limits import MotionLimits

MOVED_SHARE, MOVED_STEPS = 0.1, 10


class ManualMoveDetector:
    """Follows one hold after the other."""

    def __init__(self, limits: MotionLimits) -> None:
        spans = np.minimum(MOVED_SHARE * (limits.high - limits.low), MOVED_STEPS * limits.max_step)
        allowed = np.minimum(spans, limits.max_lead)
        self._allowed = np.where(limits.is_velocity, np.inf, allowed)
        self._least: np.ndarray | None = None

    def end(self) -> None:
        """The robot does not hold in this step."""
        self._least = None

    def was_moved(self, commanded: np.ndarray, agreed: np.ndarray | None) -> bool:
        """Return whether it was; `agreed` is where several samples see it, None if they do not."""
        if agreed is None:
            return False
        away = abs(agreed - commanded)
        self._least = away if self._least is None else np.minimum(self._least, away)
        return self.is_further(away, self._least)

    def is_further(self, away: np.ndarray, before: np.ndarray) -> bool:
        """Return whether a joint is so much further from what is commanded than it was before."""
        return bool((away - before > self._allowed).any())
