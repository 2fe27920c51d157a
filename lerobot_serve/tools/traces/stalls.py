# SPDX-License-Identifier: Apache-2.0
"""
Detects stalls: unintended gaps between executed actions of a policy. Plain; one thread.

It uses the rung of each command and the changes of rungs; either alone suffices. On request
commands that the cage holds, gaps without a command, and a queue that stays empty after the end of
an episode are stalls, too.
"""

from __future__ import annotations

from dataclasses import dataclass
import heapq

from lerobot_serve.trace.format.records import (
    ExecutedRecord,
    IncidentRecord,
    StateRecord,
    TraceRecord,
)

# number of longest stalls kept
STALLS_KEPT = 200
# suffixes of the reason of an intended end of execution
CLEARED = 'cleared'
INTENDED_ENDS = (
    *('paused', 'no_episode', 'given_up', CLEARED),
    *('person_lost', 'latched', 'stopped'),
)
# a pause between two actions of a policy that is longer than both is a stall: in seconds, and in
# intervals of those before
GAP_S, GAP_INTERVALS = 0.3, 3
HELD = 'held'
# a person who commands ends a stall as a policy does
PLAYING_RUNGS = ('policy', 'person')


@dataclass(frozen=True, slots=True)
class Stall:
    """
    The period from the first command without a chunk to the next one with a chunk, or to an
    intended end of execution; `is_open`: the trace ends before.
    """

    begin_s: float
    end_s: float
    reason: str
    is_open: bool = False

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


class StallDetector:
    """
    Tracks one client in one run: `count` and `total_s` of all stalls, and the `kept` longest ones.
    `is_playing`: the last command was an action of a chunk, or of a person. `with_holds`: actions
    that the cage holds and gaps between commands count, which the counter of an edge leaves out.
    """

    def __init__(self, kept: int = STALLS_KEPT, *, with_holds: bool = False) -> None:
        self.count, self.total_s = 0, 0.0
        self._limit, self._with_holds = kept, with_holds
        self._commanded_s: float | None = None
        self._interval_s = float('inf')
        self._kept: list[tuple[float, float, Stall]] = []
        self.is_playing = False
        self._begin_s: float | None = None
        self._reason = ''
        self._time_s = 0.0

    def add_record(self, time_s: float, record: TraceRecord) -> bool:
        """Process a record of the client; return whether a stall begins with it."""
        is_begin = False
        if isinstance(record, ExecutedRecord):
            self._note_gap(time_s)
            is_held = self._with_holds and record.cage_result == HELD
            is_begin = self._on_rung(time_s, HELD if is_held else record.rung, record.reason)
        elif isinstance(record, StateRecord) and record.component == 'rung':
            is_begin = self._on_rung(time_s, record.after, record.reason)
        elif isinstance(record, IncidentRecord) and record.name == 'stalled':
            is_begin = self._on_stalled(time_s, record.reason)
        self._time_s = time_s
        return is_begin

    def finish(self) -> None:
        """End an open stall at the end of its trace."""
        if self._begin_s is not None:
            end_s = max(self._begin_s, self._time_s)
            self._add(Stall(self._begin_s, end_s, self._reason, is_open=True))

    @property
    def longest(self) -> list[Stall]:
        return sorted((stall for *_, stall in self._kept), key=lambda stall: stall.begin_s)

    def _on_rung(self, time_s: float, rung: str, reason: str) -> bool:
        if not rung:
            return False
        was_playing, self.is_playing = self.is_playing, rung in PLAYING_RUNGS
        is_intended = reason.endswith(INTENDED_ENDS)
        # a queue that was cleared before a stall is not an end of it
        is_end = is_intended and not (self._with_holds and reason.endswith(CLEARED))
        if self._begin_s is not None and (self.is_playing or is_end):
            self._add(Stall(self._begin_s, max(self._begin_s, time_s), self._reason))
        if self.is_playing or is_intended:
            return False
        if was_playing:
            self._begin_s, self._reason = time_s, reason
        return was_playing

    def _on_stalled(self, time_s: float, reason: str) -> bool:
        """Begin a stall of which the rungs show no begin: an episode ended, and no chunk came."""
        if not self._with_holds or self.is_playing or self._begin_s is not None:
            return False
        self._begin_s, self._reason = time_s, reason
        return True

    def _note_gap(self, time_s: float) -> None:
        """Begin a stall at the last command, if the one of now comes much later."""
        before_s, self._commanded_s = self._commanded_s, time_s
        if before_s is None:
            return
        interval_s = time_s - before_s
        if interval_s <= max(GAP_S, GAP_INTERVALS * self._interval_s):
            self._interval_s = interval_s
        elif self._with_holds and self.is_playing:
            self._begin_s, self._reason = before_s, 'no command was sent'
            self.is_playing = False

    def _add(self, stall: Stall) -> None:
        self._begin_s = None
        self.count += 1
        self.total_s += stall.length_s
        push = heapq.heappush if len(self._kept) < self._limit else heapq.heappushpop
        # of two equal stalls the first one is kept
        push(self._kept, (stall.length_s, -self.count, stall))
