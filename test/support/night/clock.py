# SPDX-License-Identifier: Apache-2.0
"""The clock of a night: it jumps from event to event. One thread."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, UTC
import heapq
from itertools import count

SECOND_NS = 10**9
BEGAN = datetime(2026, 6, 1, 22, 0, tzinfo=UTC)


def never() -> bool:
    return False


class NightClock:
    """
    Steady time and time of day. An event may let time pass itself, as a verb does that waits:
    `pass_time` runs the other events meanwhile. `after_event` is called behind each event.
    """

    def __init__(self) -> None:
        self.began_ns = self.now_ns = 1000 * SECOND_NS
        # by which the system clock was stepped
        self.wall_step_s = 0.0
        self.after_event: Callable[[], None] = lambda: None
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def monotonic_ns(self) -> int:
        return self.now_ns

    def monotonic_s(self) -> float:
        return self.now_ns / SECOND_NS

    @property
    def elapsed_s(self) -> float:
        """The time since the night began."""
        return (self.now_ns - self.began_ns) / SECOND_NS

    def wall(self) -> datetime:
        """Return the time of day, by the system clock."""
        return BEGAN + timedelta(seconds=self.elapsed_s + self.wall_step_s)

    def wall_s(self) -> float:
        return self.wall().timestamp()

    def local_time(self) -> str:
        return self.wall().strftime('%Y-%m-%d %H:%M:%S UTC')

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Let something happen later."""
        at_ns = self.now_ns + int(delay_s * SECOND_NS)
        heapq.heappush(self._events, (at_ns, next(self._numbers), what))

    def every(self, period_s: float, what: Callable[[], None]) -> None:
        """Let something happen again and again."""

        def happen() -> None:
            self.after(period_s, happen)
            what()

        self.after(period_s, happen)

    def pass_time(self, duration_s: float, is_over: Callable[[], bool] = never) -> bool:
        """Run events for a time, or until `is_over`; return whether it is."""
        until_ns = self.now_ns + int(duration_s * SECOND_NS)
        while not is_over():
            if not self._events or self._events[0][0] > until_ns:
                self.now_ns = max(self.now_ns, until_ns)
                return is_over()
            at_ns, _, what = heapq.heappop(self._events)
            self.now_ns = max(self.now_ns, at_ns)
            what()
            self.after_event()
        return True
