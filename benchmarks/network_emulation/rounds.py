# SPDX-License-Identifier: Apache-2.0
"""
Those who are compared take turns, each over a link of its own; what became of their trips. Knows
no ROS; main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import time

from benchmarks.network_emulation.link import Counts, Link
from benchmarks.peers.peer_process import ImageSet

# of one contestant, with one kind of link and one size
BUDGET_S = 40.0
MAX_LOST_IN_A_ROW = 3


@dataclass(frozen=True, slots=True)
class Contender:
    """Who is asked: its link, and what makes one trip [ms]; None when that was lost."""

    link: Link
    trip_ms: Callable[[ImageSet], float | None]


@dataclass
class ContenderResult:
    """What became of the trips of one contestant, and of its packets in both directions."""

    times_ms: list[float] = field(default_factory=list)
    lost: int = 0
    lost_in_a_row: int = 0
    used_s: float = 0.0
    sent_bytes: int = 0
    packets: int = 0
    dropped: int = 0
    late: int = 0

    @property
    def goes_on(self) -> bool:
        """Whether there is time and hope left."""
        return self.used_s < BUDGET_S and self.lost_in_a_row < MAX_LOST_IN_A_ROW

    @property
    def trips(self) -> int:
        return len(self.times_ms) + self.lost

    def add(self, trip_ms: float | None, before: Counts, after: Counts) -> None:
        """Note a trip, and what its link counted before and after it."""
        if trip_ms is None:
            self.lost += 1
            self.lost_in_a_row += 1
        else:
            self.times_ms.append(trip_ms)
            self.lost_in_a_row = 0

        def more(what: str) -> int:
            return sum(after[way].get(what, 0) - before[way].get(what, 0) for way in after)

        self.sent_bytes += more('offered_bytes')
        self.packets += more('offered')
        self.dropped += more('queue_full')
        self.late += more('late')


ContenderResults = dict[str, ContenderResult]


def run_rounds(contestants: dict[str, Contender], size: ImageSet, rounds: int) -> ContenderResults:
    """
    Make the rounds, one trip of each; who has used up its time or hope is left alone. Raises
    UserError.
    """
    records = {who: ContenderResult() for who in contestants}
    for _ in range(rounds):
        for who, record in records.items():
            if record.goes_on:
                run_one(record, contestants[who], size)
    return records


def run_one(record: ContenderResult, contestant: Contender, size: ImageSet) -> None:
    """Make one trip on a link that is at rest, and wait until it is again. Raises UserError."""
    begin_s, link = time.monotonic(), contestant.link
    before = link.counts()
    trip_ms = contestant.trip_ms(size)
    link.settle()
    record.add(trip_ms, before, link.counts())
    record.used_s += time.monotonic() - begin_s
