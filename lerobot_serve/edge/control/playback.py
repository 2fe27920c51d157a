# SPDX-License-Identifier: Apache-2.0
"""
Playback of queued actions: the target of a control step is the next action, or an interpolation.

Actions beyond the staleness bound are dropped; in an interpolation both actions count. The tick
thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.edge.fallback.ladder import Ladder
from lerobot_serve.edge.queue.action_queue import ActionQueue, QueuedAction
from lerobot_serve.edge.queue.interpolation import Interpolator


class ActionPlayback:
    """Owns the current action, and the previous one that its interpolation starts from."""

    def __init__(
        self, queue: ActionQueue, ladder: Ladder, interpolator: Interpolator, max_age_ns: int
    ) -> None:
        self._queue, self._ladder, self._interpolator = queue, ladder, interpolator
        self._max_age_ns = max_age_ns
        self._epoch = queue.epoch
        self._before: QueuedAction | None = None
        self._oldest_captured_ns = 0
        self.planned: QueuedAction | None = None
        # the queue was cleared since the previous step
        self.cleared = False
        self.drops: Counter[str] = Counter()

    def follow_queue(self) -> None:
        """Detect that the queue was cleared, and drop the actions taken from it."""
        self.cleared = self._epoch != self._queue.epoch
        if self.cleared:
            self._epoch = self._queue.epoch
            self.forget()

    def next(self, now_ns: int) -> np.ndarray | None:
        """Return the target of this step, None without a fresh action."""
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
        Return whether a fresh action is available while motion may not start; drop stale actions,
        otherwise an appended queue would grow without bound.
        """
        if dropped := self._queue.drop_older(now_ns - self._max_age_ns):
            self.drops['stale_action'] += dropped
        return self.planned is not None or self._ladder.plays(self._queue.rows_left)

    def rows_left(self) -> int:
        """Return the queued rows, including the current one."""
        return self._queue.rows_left + (self.planned is not None)

    def age_ns(self, now_ns: int) -> int:
        """Return the age of the oldest observation behind the target of this step."""
        # a delayed step may execute an observation captured after its start
        return max(0, now_ns - self._oldest_captured_ns)

    def forget(self) -> None:
        self.planned = self._before = None
        self._interpolator.reset()

    def _fresh(self, oldest_ns: int) -> QueuedAction | None:
        """Return the next fresh action; drop stale ones."""
        if not self._ladder.plays(self._queue.rows_left):
            return None
        planned, dropped = self._queue.take_fresh(oldest_ns)
        if dropped:
            self.drops['stale_action'] += dropped
        # stale rows do not count towards resuming
        enough = planned and self._ladder.plays(self._queue.rows_left + 1)
        return planned if enough else None

    def _limit_interpolated_age(self, oldest_ns: int) -> None:
        """Drop a stale previous action from the interpolation; record the oldest one in it."""
        captured_ns = self.planned.source.captured_ns
        if self._before and self._interpolator.is_interpolating:
            if self._before.source.captured_ns < oldest_ns:
                self._interpolator.drop_previous()
                self._before = None
            else:
                captured_ns = min(captured_ns, self._before.source.captured_ns)
        self._oldest_captured_ns = captured_ns
