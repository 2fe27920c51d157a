# SPDX-License-Identifier: Apache-2.0
"""
One request joined from the records of edge, router and server, with the parts of its time. Plain.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.traces.fields import integer, number, Record, text

# durations that a server records of a request
SERVER_DURATIONS = ('queue_wait_ms', 'processing_ms', 'inference_ms')
LOST_STATUSES = ('timed_out', 'abandoned')


class JoinKey(NamedTuple):
    """Key that joins the records of one robot's request."""

    session_epoch: int
    seq: int


class PeerRecord(NamedTuple):
    """A record of a request, the number of its run, and its time by that run's clock."""

    run: int
    time_s: float
    record: Record


@dataclass(slots=True)
class JoinedRequest:
    """`end_s` is by the clock of the edge; without its record, by another clock, corrected."""

    key: JoinKey
    end_s: float
    edge_record: Record | None = None
    router_records: list[PeerRecord] = field(default_factory=list)
    server_records: list[PeerRecord] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Status recorded by the edge, `no record` without one."""
        return text(self.edge_record, 'status') if self.edge_record else 'no record'

    @property
    def has_no_reply(self) -> bool:
        return self.status in LOST_STATUSES

    def duration_ms(self, name: str) -> float | None:
        """Return a part of its time [ms] from the edge's record, else from the server's."""
        records = [self.edge_record, *(each.record for each in self.server_records)]
        values = (number(record, name) for record in records if record)
        return next((value for value in values if value is not None), None)

    @property
    def round_trip_ms(self) -> float | None:
        return number(self.edge_record, 'round_trip_ms') if self.edge_record else None

    @property
    def server_ms(self) -> float | None:
        """Sum of the durations recorded by the server; None when one is missing."""
        return sum_or_none(self.duration_ms(name) for name in SERVER_DURATIONS)

    @property
    def network_ms(self) -> float | None:
        """The round trip minus server time: network and router."""
        return remainder_or_none(self.round_trip_ms, self.server_ms)

    @property
    def router_ms(self) -> float | None:
        """Time the router waited for the reply that it forwarded."""
        values = (number(each.record, 'round_trip_ms') for each in self.router_records)
        return next((value for value in values if value is not None), None)


def key_of(record: Record) -> JoinKey | None:
    """Return the key of a record, None when it is incomplete."""
    epoch, seq = integer(record, 'session_epoch'), integer(record, 'seq')
    return None if epoch is None or seq is None else JoinKey(epoch, seq)


def sum_or_none(values: Iterable[float | None]) -> float | None:
    """Return the sum, None when a value is unknown."""
    known = list(values)
    return None if any(value is None for value in known) else sum(known)


def remainder_or_none(all_of_it: float | None, part: float | None) -> float | None:
    """Return the difference, never below 0; None when a value is unknown."""
    return None if all_of_it is None or part is None else max(0.0, all_of_it - part)
