# SPDX-License-Identifier: Apache-2.0
"""
What the timeline of a window consists of: requests, joined from the records of edge, router and
server with the parts of their time, and other events. Plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lerobot_serve.tools.traces.fields import policy_names
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    DamagedRecord,
    DropRecord,
    IncidentRecord,
    OutcomeRecord,
    ParameterRecord,
    PlacementRecord,
    PoliciesRecord,
    RequestRecord,
    StateRecord,
    TraceRecord,
)

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


class TimelineEvent(NamedTuple):
    """`time_s` is by the clock of the robot if its offset is known; `node` recorded it."""

    time_s: float
    node: str
    text: str


def describe_record(record: TraceRecord) -> str:
    """Return a record as text, empty if it is not an event."""
    match record:
        case StateRecord():
            return _state(record)
        case PlacementRecord():
            return _placement(record)
        case PoliciesRecord():
            return f'policies in use: {", ".join(policy_names(record.policies)) or "none"}'
        case ParameterRecord():
            return f'parameter {record.name}: {_short(record.old)} -> {_short(record.new)}'
        case DropRecord():
            return _drop(record)
        case IncidentRecord(name='stalled'):
            # the change of the rung already shows it
            return ''
        case IncidentRecord():
            return _with_reason(f'incident {record.name or "?"}', record.reason)
        case OutcomeRecord():
            ended = f'episode {record.episode_id} ended: {record.outcome or "?"}'
            return _with_reason(ended, record.reason)
        case CanaryRecord():
            return _canary(record)
        case DamagedRecord():
            return f'damaged line in this trace: {record.reason or "?"}'
    return ''


def _state(record: StateRecord) -> str:
    change = f'{record.component}: {record.before or "?"} -> {record.after or "?"}'
    return _with_reason(change, '' if record.reason == record.after else record.reason)


def _placement(record: PlacementRecord) -> str:
    verb = 'moved to' if record.moved else 'placed in'
    placed = f'episode {record.episode_id or "without name"} {verb} slot {record.slot or "?"}'
    if record.server:
        placed += f' at {record.server}'
    if record.split_version is not None:
        placed += f', version {record.split_version} of the split'
    return _with_reason(placed, record.reason)


def _drop(record: DropRecord) -> str:
    count = 1 if record.count is None else record.count
    dropped = f'dropped {count}: {record.reason or "?"}'
    return f'{dropped} ({record.item})' if record.item else dropped


def _canary(record: CanaryRecord) -> str:
    share = '' if record.share_percent is None else f', {record.share_percent:g} %'
    return _with_reason(f'canary {record.event or "?"}{share}', record.reason)


def _with_reason(event: str, reason: str) -> str:
    return f'{event} ({reason})' if reason else event


def _short(value: Any) -> str:
    written = str(value)
    return written if len(written) <= 80 else f'{written[:77]}...'
