# SPDX-License-Identifier: Apache-2.0
"""
Run a thread at a fixed rate.

Missed cycles are skipped and counted, never replayed: a robot must not receive two commands at
once.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
import time


class FixedRateLoop:
    """One thread calls `wait`."""

    def __init__(self, period_ns: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._period_ns, self._clock = period_ns, clock
        self._next_ns = clock() + period_ns
        self.cycles = 0
        self.missed = 0

    @property
    def due_ns(self) -> int:
        """The due time of the next cycle, by the clock of the loop."""
        return self._next_ns

    def wait(self, stop: threading.Event) -> bool:
        """Sleep until the next cycle; return False when `stop` is set."""
        left_ns = self._next_ns - self._clock()
        if left_ns > 0 and stop.wait(left_ns / 1e9):
            return False
        late = max(0, (self._clock() - self._next_ns) // self._period_ns)
        self.missed += late
        self._next_ns += (late + 1) * self._period_ns
        self.cycles += 1
        return not stop.is_set()
