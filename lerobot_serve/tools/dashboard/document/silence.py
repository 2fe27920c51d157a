# SPDX-License-Identifier: Apache-2.0
"""When a source counts as silent: it is not heard of for several of its usual periods. Pure."""

from __future__ import annotations

from collections import deque
from statistics import median

LEAST_LIMIT_S, PERIODS = 2.0, 3.0
KEPT_INTERVALS = 5
# a source that is gone for longer leaves the document
FORGET_S = 600.0


class Source:
    """
    The messages of one source by the steady clock; one thread.

    The usual period is the median of its last intervals, so that one long gap does not count as
    usual. Before a second message there is none: a latched state may be of a process that hangs.
    """

    def __init__(self) -> None:
        self.last_s: float | None = None
        self._intervals: deque[float] = deque(maxlen=KEPT_INTERVALS)

    def on_message(self, now_s: float) -> None:
        if self.last_s is not None:
            self._intervals.append(now_s - self.last_s)
        self.last_s = now_s

    @property
    def limit_s(self) -> float:
        """The time without a message after which it is silent [s]."""
        if not self._intervals:
            return LEAST_LIMIT_S
        return max(LEAST_LIMIT_S, PERIODS * median(self._intervals))

    def is_silent(self, now_s: float, publishers: int) -> bool:
        """Return whether it is silent: at once without a publisher; False before any message."""
        if self.last_s is None:
            return False
        gap_s = now_s - self.last_s
        # the limit of hundreds of sources that are heard of is never computed
        return publishers == 0 or (gap_s > LEAST_LIMIT_S and gap_s > self.limit_s)

    def is_gone(self, now_s: float, publishers: int) -> bool:
        """Return whether it leaves the document; one that hangs has a publisher and stays."""
        is_old = self.last_s is None or now_s - self.last_s > FORGET_S
        return publishers == 0 and is_old
