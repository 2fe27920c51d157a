# SPDX-License-Identifier: Apache-2.0
"""
Playback of queued actions: the target of a control step is the next action, or an interpolation.

Actions beyond the staleness bound are dropped; an interpolated target is as old as the older of
its two actions. The tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.arrays import Float64Array
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
        self._epoch, self._episodes_ended = queue.epoch, queue.episodes_ended
        self._previous: QueuedAction | None = None
        self._oldest_captured_ns = 0
        self.current: QueuedAction | None = None
        # the queue was cleared since the previous step
        self.cleared = False
        # the episode ended since the previous step
        self.episode_ended = False
        self.dropped: Counter[str] = Counter()

    def follow_queue(self) -> None:
        """Detect that the queue was cleared, and drop the actions taken from it."""
        self.episode_ended = self._episodes_ended != self._queue.episodes_ended
        self._episodes_ended = self._queue.episodes_ended
        self.cleared = self._epoch != self._queue.epoch
        if self.cleared:
            self._epoch = self._queue.epoch
            self.reset()

    def next(self, now_ns: int) -> Float64Array | None:
        """Return the target of this step, None without a fresh action."""
        oldest_ns = now_ns - self._max_age_ns
        if self.current and self.current.source.captured_ns < oldest_ns:
            if not self._interpolator.needs_action:
                self.dropped['stale_action'] += 1
            self.reset()
        if self._interpolator.needs_action:
            self._previous, self.current = self.current, self._fresh(oldest_ns)
            if self.current is None:
                return None
            self._interpolator.feed(self.current.action.astype(np.float64))
        self._limit_interpolated_age(oldest_ns)
        return self._interpolator.take()

    def has_playable(self, now_ns: int) -> bool:
        """
        Return whether a fresh action is available while motion may not start; drop stale actions,
        otherwise an appended queue would grow without bound.
        """
        if dropped := self._queue.drop_older(now_ns - self._max_age_ns):
            self.dropped['stale_action'] += dropped
        return self.current is not None or self._ladder.plays(self._queue.rows_left)

    def rows_left(self) -> int:
        """Return the queued rows, including the current one."""
        return self._queue.rows_left + (self.current is not None)

    def age_ns(self, now_ns: int) -> int:
        """Return the age of the oldest observation behind the target of this step."""
        # a delayed step may execute an observation captured after its start
        return max(0, now_ns - self._oldest_captured_ns)

    def discard(self) -> None:
        """Drop all actions, also of chunks that were requested before now."""
        self._queue.clear(ends_episode=False)

    def reset(self) -> None:
        self.current = self._previous = None
        self._interpolator.reset()

    def _fresh(self, oldest_ns: int) -> QueuedAction | None:
        """Return the next fresh action; drop stale ones."""
        if not self._ladder.plays(self._queue.rows_left):
            return None
        planned, dropped = self._queue.take_fresh(oldest_ns)
        if dropped:
            self.dropped['stale_action'] += dropped
        # stale rows do not count towards resuming
        enough = planned and self._ladder.plays(self._queue.rows_left + 1)
        return planned if enough else None

    def _limit_interpolated_age(self, oldest_ns: int) -> None:
        """Drop a stale previous action from the interpolation; record the oldest one in it."""
        if self.current is None:
            return
        captured_ns = self.current.source.captured_ns
        if self._previous and self._interpolator.is_interpolating:
            if self._previous.source.captured_ns < oldest_ns:
                self._interpolator.drop_previous()
                self._previous = None
            else:
                captured_ns = min(captured_ns, self._previous.source.captured_ns)
        self._oldest_captured_ns = captured_ns
