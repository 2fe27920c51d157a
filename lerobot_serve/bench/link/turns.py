"""
Those who are compared take turns, each over a link of its own; what became of their trips. Knows
no ROS; main thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import time

from lerobot_serve.bench.link.processes import Counts, Link
from lerobot_serve.bench.peers.trips import Size

# of one contestant, with one kind of link and one size
BUDGET_S = 40.0
GIVEN_UP_AFTER = 3


@dataclass(frozen=True, slots=True)
class Contestant:
    """Who is asked: its link, and what makes one trip [ms]; None when that was lost."""

    link: Link
    trip_ms: Callable[[Size], float | None]


@dataclass
class Record:
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
        return self.used_s < BUDGET_S and self.lost_in_a_row < GIVEN_UP_AFTER

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


Records = dict[str, Record]


def alternate(contestants: dict[str, Contestant], size: Size, rounds: int) -> Records:
    """
    Make the rounds, one trip of each; who has used up its time or hope is left alone. Raises
    UserError.
    """
    records = {who: Record() for who in contestants}
    for _ in range(rounds):
        for who, record in records.items():
            if record.goes_on:
                one_turn(record, contestants[who], size)
    return records


def one_turn(record: Record, contestant: Contestant, size: Size) -> None:
    """Make one trip on a link that is at rest, and wait until it is again. Raises UserError."""
    begin_s, link = time.monotonic(), contestant.link
    before = link.counts()
    trip_ms = contestant.trip_ms(size)
    link.settle()
    record.add(trip_ms, before, link.counts())
    record.used_s += time.monotonic() - begin_s
