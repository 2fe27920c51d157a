# SPDX-License-Identifier: Apache-2.0
"""
Read the figures of a run from its traces, after the run: no node is slowed down for them.

One thread; reads files. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from lerobot_serve.demo.results.success_gain import PASSED, passed_comparison, PassedComparison
from lerobot_serve.tools.traces.query import TraceQuery
from lerobot_serve.tools.traces.trace_run import Entry
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    ExecutedRecord,
    RequestRecord,
    ShadowRecord,
    TraceRecord,
)

Points = list[tuple[float, float]]
EDGE, ROUTER = 'edge', 'router'


@dataclass(frozen=True, slots=True)
class PlayedAction:
    """An action of a policy that a robot executed."""

    time_s: float
    episode_id: str
    age_s: float


@dataclass(slots=True)
class RunRecords:
    """What the traces of a run hold; a share holds until the next one."""

    # robot -> its actions in order
    actions: dict[str, list[PlayedAction]] = field(default_factory=dict)
    # policy -> round trips at the robots [ms]
    round_trips_ms: dict[str, Points] = field(default_factory=dict)
    divergences: Points = field(default_factory=list)
    # share of new episodes in slot b [%]
    shares: Points = field(default_factory=list)
    # candidates that were shown to be not worse
    comparisons: list[PassedComparison] = field(default_factory=list)


def read_records(traces: Path) -> RunRecords:
    """Return the records of a folder, none without traces. Raises TraceError."""
    records = RunRecords()
    if any(traces.glob('*')):
        for entry in TraceQuery([traces], with_actions=False).by_time():
            add_entry(records, entry)
    return records


def add_entry(records: RunRecords, entry: Entry) -> None:
    """Add one record; those of other kinds and nodes are skipped."""
    record, time_s = entry.record, entry.time_s
    if entry.run.role == EDGE:
        _add_of_edge(records, record, time_s)
    elif entry.run.role == ROUTER:
        _add_of_router(records, record, time_s)


def _add_of_edge(records: RunRecords, record: TraceRecord, time_s: float) -> None:
    if isinstance(record, ExecutedRecord) and record.is_played:
        action = PlayedAction(time_s, record.episode_id, record.age_s or 0.0)
        records.actions.setdefault(record.client_id, []).append(action)
    elif isinstance(record, RequestRecord) and record.policy and record.round_trip_ms:
        line = records.round_trips_ms.setdefault(record.policy, [])
        line.append((time_s, record.round_trip_ms))


def _add_of_router(records: RunRecords, record: TraceRecord, time_s: float) -> None:
    if isinstance(record, ShadowRecord) and record.divergence is not None:
        records.divergences.append((time_s, record.divergence))
    elif isinstance(record, CanaryRecord):
        share = record.share_percent or 0.0
        # two points at one time draw a step
        records.shares.append((time_s, records.shares[-1][1] if records.shares else 0.0))
        records.shares.append((time_s, share))
        if record.event == PASSED:
            records.comparisons.append(passed_comparison(time_s, record.evidence or {}))


def longest_gaps_ms(
    actions: Iterable[Sequence[PlayedAction]], begin_s: float, end_s: float
) -> tuple[float, float]:
    """
    Return the longest time between two actions of one episode, and of two episodes, of any robot
    in a period [ms].
    """
    within = between = 0.0
    for line in actions:
        played = [each for each in line if begin_s <= each.time_s <= end_s]
        for one, two in pairwise(played):
            gap_ms = 1e3 * (two.time_s - one.time_s)
            if one.episode_id == two.episode_id:
                within = max(within, gap_ms)
            else:
                between = max(between, gap_ms)
    return within, between
