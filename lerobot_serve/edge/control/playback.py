# SPDX-License-Identifier: Apache-2.0
"""
Playback of queued actions: the target of a control step is the next action, or an interpolation.

Actions beyond the staleness bound are dropped; an interpolated target is as old as the older of
its two actions. The tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.arrays import Float64Array, is_finite
from lerobot_serve.edge.action_queue import ActionQueue, QueuedAction
from lerobot_serve.edge.control.ladder import Ladder


class Interpolator:
    """Feed an action when `needs_action`, then take a step each tick."""

    def __init__(self, multiplier: int) -> None:
        """Raise ValueError for a multiplier below 1."""
        if multiplier < 1:
            raise ValueError(f'multiplier must be 1 or more steps per action, got {multiplier}')
        self._multiplier = multiplier
        self.reset()

    def reset(self) -> None:
        """Reset: the next action is emitted alone."""
        self._start: Float64Array | None = None
        self._end: Float64Array | None = None
        self._steps_left = 0

    @property
    def needs_action(self) -> bool:
        return self._steps_left == 0

    def feed(self, action: Float64Array) -> None:
        """Start the steps from the previous action to this one."""
        self._start, self._end = self._end, action
        self._steps_left = 1 if self._start is None else self._multiplier

    @property
    def is_interpolating(self) -> bool:
        """Whether the next step is a mixture of two actions."""
        return self._steps_left > 1

    def drop_previous(self) -> None:
        """Make each remaining step the action itself."""
        self._start = self._end

    def take(self) -> Float64Array | None:
        """
        Return the next step, None if an action is needed.

        If one of the two actions is not finite, each step is the later one unchanged, for the cage
        to check.
        """
        if self.needs_action:
            return None
        self._steps_left -= 1
        start, end = self._start, self._end
        if start is None or end is None or not self._steps_left:
            return end
        if not (is_finite(start) and is_finite(end)):
            return end
        # weighted rather than start + part * (end - start), which can overflow
        left, total = self._steps_left, self._multiplier
        step = left / total * start + (total - left) / total * end
        # rounding must not exceed the range between the two actions
        return np.clip(step, np.minimum(start, end), np.maximum(start, end))


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
