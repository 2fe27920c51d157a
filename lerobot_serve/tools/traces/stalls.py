# SPDX-License-Identifier: Apache-2.0
"""
Detects stalls: unintended gaps between executed actions of a policy. Plain; one thread.

It uses the rung of each command and the changes of rungs; either alone suffices.
"""

from __future__ import annotations

from dataclasses import dataclass
import heapq

from lerobot_serve.tools.stats.collect import INTENDED_ENDS
from lerobot_serve.tools.traces.fields import Record, text

# number of longest stalls kept
STALLS_KEPT = 200


@dataclass(frozen=True, slots=True)
class Stall:
    """From its first command without a chunk to the next one with; `is_open`: none came."""

    begin_s: float
    end_s: float
    reason: str
    is_open: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


class StallDetector:
    """Follows one client in one run: `count` and `total_s` of all stalls, the longest `kept`."""

    def __init__(self, kept: int = STALLS_KEPT) -> None:
        self.count, self.total_s = 0, 0.0
        self._limit = kept
        self._kept: list[tuple[float, float, Stall]] = []
        self._is_playing = False
        self._begin_s: float | None = None
        self._why = ''
        self._time_s = 0.0

    def add_record(self, time_s: float, record: Record) -> None:
        """Process a record of the client."""
        kind = record['kind']
        if kind == 'executed':
            self._rung(time_s, text(record, 'rung'), text(record, 'reason'))
        elif kind == 'state' and text(record, 'component') == 'rung':
            self._rung(time_s, text(record, 'to'), text(record, 'reason'))
        self._time_s = time_s

    def finish(self) -> None:
        """End an open stall at the end of its trace."""
        if self._begin_s is not None:
            self._add(Stall(self._begin_s, max(self._begin_s, self._time_s), self._why, True))

    @property
    def longest(self) -> list[Stall]:
        return sorted((stall for *_, stall in self._kept), key=lambda stall: stall.begin_s)

    def _rung(self, time_s: float, rung: str, why: str) -> None:
        if rung == 'policy':
            if self._begin_s is not None:
                self._add(Stall(self._begin_s, max(self._begin_s, time_s), self._why))
            self._is_playing = True
        elif rung:
            if self._is_playing and not why.endswith(INTENDED_ENDS):
                self._begin_s, self._why = time_s, why
            self._is_playing = False

    def _add(self, stall: Stall) -> None:
        self._begin_s = None
        self.count += 1
        self.total_s += stall.length_s
        push = heapq.heappush if len(self._kept) < self._limit else heapq.heappushpop
        # of two that are alike the first one stays
        push(self._kept, (stall.length_s, -self.count, stall))
