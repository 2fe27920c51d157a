# SPDX-License-Identifier: Apache-2.0
"""Events of the timeline other than requests. Pure functions; any thread."""

from __future__ import annotations

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
    StateRecord,
    TraceRecord,
)


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
