"""
One request as edge, router and server tell of it, and where its time went. Plain; one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.traces.fields import integer, number, Record, text

# what a server says of the time that it had a request
SERVER_DURATIONS = ('queue_wait_ms', 'processing_ms', 'inference_ms')
LOST_STATUSES = ('timed_out', 'given_up')


class JoinKey(NamedTuple):
    """What joins the records of one robot's request."""

    session_epoch: int
    seq: int


class PeerRecord(NamedTuple):
    """A record of a request, of which run (its number), and when by that run's own clock."""

    run: int
    time_s: float
    record: Record


@dataclass(slots=True)
class JoinedRequest:
    """`end_s` is by the clock of the edge; one that only others tell of has theirs, put right."""

    key: JoinKey
    end_s: float
    edge: Record | None = None
    routers: list[PeerRecord] = field(default_factory=list)
    servers: list[PeerRecord] = field(default_factory=list)

    @property
    def status(self) -> str:
        """What the edge says became of it, `no record` where it says nothing."""
        return text(self.edge, 'status') if self.edge else 'no record'

    @property
    def is_lost(self) -> bool:
        return self.status in LOST_STATUSES

    def part(self, name: str) -> float | None:
        """Return a part of its time [ms]: of the edge's record, else of the server's."""
        records = [self.edge, *(told.record for told in self.servers)]
        values = (number(record, name) for record in records if record)
        return next((value for value in values if value is not None), None)

    @property
    def round_trip_ms(self) -> float | None:
        return number(self.edge, 'round_trip_ms') if self.edge else None

    @property
    def server_ms(self) -> float | None:
        """All that the server says of its own time; None when it says not all."""
        return sum_or_none(self.part(name) for name in SERVER_DURATIONS)

    @property
    def network_ms(self) -> float | None:
        """The round trip less what the server says; the way and the router."""
        return remainder_or_none(self.round_trip_ms, self.server_ms)

    @property
    def router_ms(self) -> float | None:
        """How long the router waited for the answer that it passed on."""
        values = (number(told.record, 'round_trip_ms') for told in self.routers)
        return next((value for value in values if value is not None), None)


def key_of(record: Record) -> JoinKey | None:
    """Return what joins a record, None where that is not whole."""
    epoch, seq = integer(record, 'session_epoch'), integer(record, 'seq')
    return None if epoch is None or seq is None else JoinKey(epoch, seq)


def sum_or_none(values: Iterable[float | None]) -> float | None:
    """Return the sum, None when one is not known."""
    known = list(values)
    return None if any(value is None for value in known) else sum(known)


def remainder_or_none(all_of_it: float | None, part: float | None) -> float | None:
    """Return what is left, never below 0; None when one is not known."""
    return None if all_of_it is None or part is None else max(0.0, all_of_it - part)
