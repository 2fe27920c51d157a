"""
What a policy's actions make of a control step: the next one, or a step on the way to it.

Nothing is played whose observation is too old; between two actions both count. The tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.edge.fallback.ladder import Ladder
from lerobot_serve.edge.queue.action_queue import ActionQueue, QueuedAction
from lerobot_serve.edge.queue.interpolation import Interpolator


class ActionPlayback:
    """Owns the action that is being played, and the one that its steps begin from."""

    def __init__(
        self, queue: ActionQueue, ladder: Ladder, interpolator: Interpolator, max_age_ns: int
    ) -> None:
        self._queue, self._ladder, self._interpolator = queue, ladder, interpolator
        self._max_age_ns = max_age_ns
        self._epoch = queue.epoch
        self._before: QueuedAction | None = None
        self._oldest_captured_ns = 0
        self.planned: QueuedAction | None = None
        # the queue was cleared since the step before
        self.cleared = False
        self.drops: Counter[str] = Counter()

    def follow_queue(self) -> None:
        """Notice that the queue was cleared: what was taken from it before ends with it."""
        self.cleared = self._epoch != self._queue.epoch
        if self.cleared:
            self._epoch = self._queue.epoch
            self.forget()

    def next(self, now_ns: int) -> np.ndarray | None:
        """Return what is to be played in this step, None for nothing."""
        oldest_ns = now_ns - self._max_age_ns
        if self.planned and self.planned.source.captured_ns < oldest_ns:
            if not self._interpolator.needs_action:
                self.drops['stale_action'] += 1
            self.forget()
        if self._interpolator.needs_action:
            self._before, self.planned = self.planned, self._fresh(oldest_ns)
            if self.planned is None:
                return None
            self._interpolator.feed(self.planned.action.astype(np.float64))
        self._limit_interpolated_age(oldest_ns)
        return self._interpolator.take()

    def waits(self, now_ns: int) -> bool:
        """
        Tell whether there is something to play while nothing may begin; drop what grew too old,
        or a queue that is appended to would grow for as long.
        """
        if dropped := self._queue.drop_older(now_ns - self._max_age_ns):
            self.drops['stale_action'] += dropped
        return self.planned is not None or self._ladder.plays(self._queue.rows_left)

    def rows_left(self) -> int:
        """Return the rows that are buffered, with the one that is being played."""
        return self._queue.rows_left + (self.planned is not None)

    def age_ns(self, now_ns: int) -> int:
        """Return the age of the oldest observation that is in what was played in this step."""
        # a step that was held up may play what was seen after it began
        return max(0, now_ns - self._oldest_captured_ns)

    def forget(self) -> None:
        self.planned = self._before = None
        self._interpolator.reset()

    def _fresh(self, oldest_ns: int) -> QueuedAction | None:
        """Return the next action whose observation is not too old, dropping those that are."""
        if not self._ladder.plays(self._queue.rows_left):
            return None
        planned, dropped = self._queue.take_fresh(oldest_ns)
        if dropped:
            self.drops['stale_action'] += dropped
        # those that were too old do not count for what is enough
        enough = planned and self._ladder.plays(self._queue.rows_left + 1)
        return planned if enough else None

    def _limit_interpolated_age(self, oldest_ns: int) -> None:
        """Mix in no action that is too old by now; note the oldest that is mixed in."""
        captured_ns = self.planned.source.captured_ns
        if self._before and self._interpolator.is_interpolating:
            if self._before.source.captured_ns < oldest_ns:
                self._interpolator.drop_previous()
                self._before = None
            else:
                captured_ns = min(captured_ns, self._before.source.captured_ns)
        self._oldest_captured_ns = captured_ns
