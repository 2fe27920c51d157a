# SPDX-License-Identifier: Apache-2.0
"""
One request joined from the records of edge, router and server, with the parts of its time. Plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.trace.format.records import RequestRecord, TraceRecord

# ends of a request without any reply; an abandoned one may not have been sent
TIMED_OUT, ABANDONED = 'timed_out', 'abandoned'
# replies to a request that no server has served, often of the router itself
NO_SLOT, NO_SESSION, DRAINING, QUOTA = 'no_slot', 'no_session', 'draining', 'quota'
UNSERVED = (NO_SLOT, NO_SESSION, DRAINING, QUOTA)


class JoinKey(NamedTuple):
    """Key that joins the records of one robot's request."""

    session_epoch: int
    seq: int


class PeerRecord(NamedTuple):
    """A record of a request, the number of its run, and its time by that run's clock."""

    run: int
    time_s: float
    record: RequestRecord


@dataclass(slots=True)
class JoinedRequest:
    """`end_s` is by the clock of the edge; without its record, by another clock, corrected."""

    key: JoinKey
    end_s: float
    edge_record: RequestRecord | None = None
    router_records: list[PeerRecord] = field(default_factory=list)
    server_records: list[PeerRecord] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Status recorded by the edge, `no record` without one."""
        return self.edge_record.status if self.edge_record else 'no record'

    @property
    def has_no_reply(self) -> bool:
        return self.status in (TIMED_OUT, ABANDONED)

    @property
    def is_lost(self) -> bool:
        """Whether nothing of a server came: to the edge, or to the router that refused for it."""
        record = self.edge_record
        return record is not None and (self.status == TIMED_OUT or record.is_from_silent_server)

    @property
    def queue_wait_ms(self) -> float | None:
        return first_known(record.queue_wait_ms for record in self._edge_then_server())

    @property
    def processing_ms(self) -> float | None:
        return first_known(record.processing_ms for record in self._edge_then_server())

    @property
    def inference_ms(self) -> float | None:
        return first_known(record.inference_ms for record in self._edge_then_server())

    def _edge_then_server(self) -> Iterator[RequestRecord]:
        """
        Yield the records with the durations of the server: of the edge, then of the server itself.
        """
        if self.edge_record and self.edge_record.status not in UNSERVED:
            yield self.edge_record
        yield from (each.record for each in self.server_records)

    @property
    def round_trip_ms(self) -> float | None:
        return self.edge_record.round_trip_ms if self.edge_record else None

    @property
    def server_ms(self) -> float | None:
        """Sum of the durations recorded by the server; None when one is missing."""
        return sum_or_none((self.queue_wait_ms, self.processing_ms, self.inference_ms))

    @property
    def network_ms(self) -> float | None:
        """The round trip minus server time: network and router."""
        return remainder_or_none(self.round_trip_ms, self.server_ms)

    @property
    def router_ms(self) -> float | None:
        """Time the router waited for the reply that it forwarded."""
        return first_known(each.record.round_trip_ms for each in self.router_records)


def key_of(record: TraceRecord) -> JoinKey | None:
    """Return the key of a record, None when it is incomplete."""
    epoch, seq = record.session_epoch, record.seq
    return None if epoch is None or seq is None else JoinKey(epoch, seq)


def first_known(values: Iterable[float | None]) -> float | None:
    """Return the first known value."""
    return next((value for value in values if value is not None), None)


def sum_or_none(values: Iterable[float | None]) -> float | None:
    """Return the sum, None when a value is unknown."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def remainder_or_none(all_of_it: float | None, part: float | None) -> float | None:
    """Return the difference, never below 0; None when a value is unknown."""
    return None if all_of_it is None or part is None else max(0.0, all_of_it - part)
