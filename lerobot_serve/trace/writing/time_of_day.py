# SPDX-License-Identifier: Apache-2.0
"""
Watch the time of day against the clock of a node: a robot without a battery for its clock starts
at a wrong one, and NTP sets it later.
"""

from __future__ import annotations

from collections.abc import Callable

CHECK_NS, MOVED_S = 60_000_000_000, 1.0


class TimeOfDay:
    """`wall` returns the seconds since 1970. One thread at a time."""

    def __init__(self, clock: Callable[[], int], wall: Callable[[], float]) -> None:
        self._clock, self._wall = clock, wall
        self.take()

    def take(self) -> tuple[int, float]:
        """Return one instant by both clocks."""
        now_ns, wall_s = self._clock(), self._wall()
        self._checked_ns, self._offset_s = now_ns, wall_s - now_ns / 1e9
        return now_ns, wall_s

    def has_moved(self) -> bool:
        """Return whether it was set since `take`; looks once in CHECK_NS."""
        now_ns = self._clock()
        if now_ns - self._checked_ns < CHECK_NS:
            return False
        self._checked_ns = now_ns
        return abs(self._wall() - now_ns / 1e9 - self._offset_s) > MOVED_S
