"""
One control step: the next action that is not stale, through the cage.

Plain and without a clock. The tick thread calls `step`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lerobot_serve.edge.cage import Cage, Judgement, Verdict
from lerobot_serve.edge.queue import ActionQueue, Planned


@dataclass(frozen=True, slots=True, eq=False)
class Executed:
    """What one step commands and why."""

    planned: Planned
    judgement: Judgement
    age_ns: int


class Controller:
    """Owns the last command. One thread."""

    def __init__(self, queue: ActionQueue, cage: Cage, *, max_action_age_ns: int) -> None:
        self._queue, self._cage, self._max_age_ns = queue, cage, max_action_age_ns
        self._last: np.ndarray | None = None
        self.drops: Counter[str] = Counter()
        self.actions_executed = 0
        self.cage_trips = 0
        self.stalls = 0
        self._was_playing = False
        self.age_ns = 0

    def step(self, now_ns: int, position: Callable[[], np.ndarray | None]) -> Executed | None:
        """
        Return the command of this step, None when there is nothing that may be played.

        `position` tells where the robot is, in action order; it is asked before the first command
        after a pause and bounds it.
        """
        planned = self._fresh(now_ns)
        if planned is None:
            self.stalls += self._was_playing
            self._was_playing = False
            # after a stall the robot may have been moved: measure again
            self._last = None
            return None
        self._was_playing = True
        last = position() if self._last is None else self._last
        judgement = self._cage.judge(planned.action, last)
        if judgement.verdict != Verdict.PASS:
            self.cage_trips += 1
        if judgement.command is not None:
            self._last = judgement.command
            self.actions_executed += 1
        self.age_ns = now_ns - planned.source.captured_ns
        return Executed(planned, judgement, self.age_ns)

    def _fresh(self, now_ns: int) -> Planned | None:
        """Return the next action whose observation is not too old, dropping those that are."""
        planned, dropped = self._queue.take_fresh(now_ns - self._max_age_ns)
        if dropped:
            self.drops['stale_action'] += dropped
        return planned
