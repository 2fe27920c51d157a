"""
The last check before a command leaves, on every path.

Not finite means hold, never zero. Positions are kept inside the limits, and from one step to the
next no joint is asked for more than its max_step. A joint that stands outside its limits is led
back to them at that pace: to jump there would be unsafe, to refuse would leave it there for ever.
What goes wrong inside the cage stops the robot: it fails closed. Tick thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from lerobot_serve.edge.robot import ActionLimit


class Verdict(IntEnum):
    """ExecutedAction.verdict."""

    PASS = 0
    CLAMPED = 1
    HELD = 2
    STOPPED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """What may be commanded: None means that nothing is sent."""

    verdict: Verdict
    command: np.ndarray | None
    reason: str = ''


class Cage:
    """Holds the limits and the last command."""

    def __init__(self, limits: tuple[ActionLimit, ...]) -> None:
        self._names = [limit.name for limit in limits]
        self._low = np.array([limit.low for limit in limits])
        self._high = np.array([limit.high for limit in limits])
        self._step = np.array([limit.max_step for limit in limits])

    def judge(self, wanted: np.ndarray, last: np.ndarray | None) -> Judgement:
        """
        Return what may be commanded instead of `wanted`.

        `last` is the command before, or where the robot is when there was none; without it nothing
        may move.
        """
        try:
            return self._judge(np.asarray(wanted, np.float64), last)
        except Exception as error:
            # a cage that cannot judge must not let through
            return Judgement(Verdict.STOPPED, None, f'the cage failed: {error}')

    def _judge(self, wanted: np.ndarray, last: np.ndarray | None) -> Judgement:
        if last is None or last.shape != self._low.shape or not np.isfinite(last).all():
            return Judgement(Verdict.STOPPED, None, 'where the robot is is not known')
        if wanted.shape != self._low.shape:
            return Judgement(Verdict.STOPPED, None, f'{wanted.shape} is not one action')
        if not np.isfinite(wanted).all():
            name = self._names[int(np.argmin(np.isfinite(wanted)))]
            return Judgement(Verdict.HELD, last.copy(), f'{name} is not finite')
        inside = np.clip(wanted, self._low, self._high)
        safe = np.clip(inside, last - self._step, last + self._step)
        changed = safe != wanted
        if not changed.any():
            return Judgement(Verdict.PASS, safe)
        first = int(np.argmax(changed))
        cause = 'limit' if inside[first] != wanted[first] else 'max_step'
        return Judgement(Verdict.CLAMPED, safe, f'{self._names[first]}: {cause}')
