# SPDX-License-Identifier: Apache-2.0
"""
Read the figures of a run from its traces, after the run: no node is slowed down for them. Also
what the trials of learned versions have shown, and the audit of the traces.

One thread; reads files. Times are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
import math
from pathlib import Path
from typing import Any

from lerobot_serve.tools.audit.check import TRACE_CHECKS
from lerobot_serve.tools.audit.engine import run_audit
from lerobot_serve.tools.audit.report import audit_report
from lerobot_serve.tools.traces.trace_run import TraceEntry, TraceQuery
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    ExecutedRecord,
    RequestRecord,
    ShadowRecord,
    TraceRecord,
)
from lerobot_serve.trace.format.run_files import TraceError

Points = list[tuple[float, float]]
EDGE, ROUTER = 'edge', 'router'
# what the rounds must gain together, and the evidence of each promotion
GAIN, EVIDENCE = 0.2, 20.0
PASSED = 'passed'
# the router writes its trace behind the state that it publishes
WRITTEN_S = 2.0


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


def add_entry(records: RunRecords, entry: TraceEntry) -> None:
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


@dataclass(frozen=True, slots=True)
class PassedComparison:
    """A candidate that the router's test has shown to be not worse; log10 of the evidence."""

    time_s: float
    evidence_log10: float
    candidate: tuple[int, int]
    champion: tuple[int, int]

    @property
    def odds(self) -> float:
        """The evidence as a number to one."""
        return math.pow(10.0, self.evidence_log10)


def passed_comparison(time_s: float, evidence: Mapping[str, Any]) -> PassedComparison:
    """Return a comparison by the evidence of its record; successes and episodes of both."""

    def counted(slot: str) -> tuple[int, int]:
        good = int(evidence.get(f'{slot}_successes') or 0)
        return good, good + int(evidence.get(f'{slot}_failures') or 0)

    evidence_log10 = float(evidence.get('log10_not_worse') or 0.0)
    return PassedComparison(time_s, evidence_log10, counted('candidate'), counted('champion'))


def with_gain(found: Mapping[str, Any], comparisons: Sequence[PassedComparison]) -> dict[str, Any]:
    """
    Return the figures of the act `learn` with the success rates and the evidence of each round;
    `shown` is false unless both are large enough.
    """
    rounds = []
    for each in found['rounds']:
        until_s = each['promoted_at_s'] + WRITTEN_S
        last = max(
            (one for one in comparisons if one.time_s <= until_s),
            key=lambda one: one.time_s,
            default=PassedComparison(0.0, 0.0, (0, 0), (0, 0)),
        )
        rounds.append(
            {
                **each,
                'evidence': round(last.odds, 1),
                'candidate': list(last.candidate),
                'champion': list(last.champion),
            }
        )
    before, after = _rate(rounds[0]['champion']), _rate(rounds[-1]['candidate'])
    is_proved = after - before >= GAIN and all(each['evidence'] >= EVIDENCE for each in rounds)
    return {
        **found,
        'shown': found['shown'] and is_proved,
        'before_percent': round(100 * before),
        'after_percent': round(100 * after),
        'rounds': rounds,
    }


def _rate(counts: Sequence[int]) -> float:
    good, count = counts
    return good / count if count else 0.0


def audit_traces(traces: Path) -> dict[str, Any]:
    """Audit the traces of a folder and return the result; empty without traces."""
    if not any(traces.glob('*')):
        return {}
    try:
        found = run_audit([traces])
    except TraceError as error:
        return {'outcome': 'not_judged', 'why': str(error), 'violations': None, 'judged': 0}
    driving = [each for each in found.results if each.check not in TRACE_CHECKS]
    (traces.parent / 'audit.txt').write_text(audit_report(found).as_text() + '\n')
    return {
        'outcome': found.outcome.value,
        'traces': len(found.runs),
        'violations': sum(each.violations for each in driving),
        'judged': sum(each.judged for each in driving),
        # a killed process writes no footer
        'without_end': sum(not run.is_complete for run in found.runs),
        'checks': {each.check: each.outcome.value for each in found.results},
    }
