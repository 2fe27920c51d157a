# SPDX-License-Identifier: Apache-2.0
"""
What a fleet did: the decisions on rollouts, slots and parameters with who made them and why,
episodes and outcomes of each policy, robots that halted or stalled, servers that failed.

From the traces of routers, edges and servers. One thread; reads files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
import re

import msgspec

from lerobot_serve.tools.output.report import Facts, Part, Report
from lerobot_serve.tools.output.text import format_local, sources_line
from lerobot_serve.tools.traces.trace_run import TraceEntry, TraceQuery
from lerobot_serve.trace.format.records import (
    CanaryRecord,
    CommandRecord,
    IncidentRecord,
    OutcomeRecord,
    ParameterRecord,
    PlacementRecord,
    ReportedOutcomeRecord,
    StateRecord,
    TraceRecord,
)

BY = '; by: '
BY_OPERATOR = re.compile(r'(^|; )by an operator: ')
BY_CANARY = 'the canary'
# overall health of a router
HEALTH = {
    'healthy': 'all slots serve',
    'slot_a_drained': 'slot a gets no new episodes',
    'slot_b_drained': 'slot b gets no new episodes',
    'unavailable': 'no slot gets episodes',
}
# the others have an event of the rollout, or a parameter, with the same name and reason
NOTE = 'note'
SHOWN_COMMANDS = ('drain', 'restore', 'probe', 'lift verdict', 'skip shadow', NOTE)
# parts of a robot and of a server whose states are decisions
SHOWN_STATES = {
    'router': ('slots',),
    'server': ('server',),
    'edge': ('cage',),
}


def is_decision(record: TraceRecord, role: str) -> bool:
    """Return whether a record belongs into the history of a fleet."""
    if role != 'router':
        part = record.component if isinstance(record, StateRecord) else ''
        return part in SHOWN_STATES.get(role, ())
    if isinstance(record, CommandRecord):
        return record.name in SHOWN_COMMANDS
    if isinstance(record, ParameterRecord):
        # the event of the canary has its share
        return not (record.name == 'split_percent' and record.by == BY_CANARY)
    return isinstance(record, CanaryRecord | StateRecord)


def decision_text(record: TraceRecord, role: str = 'router') -> tuple[str, str, str] | None:
    """Return what happened, why and by whom; None for a record that is not a decision."""
    if isinstance(record, CanaryRecord):
        return _canary(record)
    if isinstance(record, CommandRecord):
        what = f'{record.name} {record.slot}' if record.slot else record.name or 'command'
        by, why = _split_author(record.by or '')
        # a note is what an operator did to a robot or a shadow
        return (why, '', by) if record.name == NOTE else (what, why, by)
    if isinstance(record, StateRecord):
        return _state(record)
    if isinstance(record, ParameterRecord):
        by, why = _split_author(record.by or '')
        return f'{record.name}: {record.old} -> {record.new}', why, by
    return None


def _canary(record: CanaryRecord) -> tuple[str, str, str]:
    share = record.share_percent
    shown = '' if share is None else f', {share:g} % to slot b'
    shown += f' ({record.policy})' if record.policy else ''
    why, by = record.reason or '', ''
    if BY in why:
        why, _, author = why.rpartition(BY)
        by, reason = _split_author(author)
        why = f'{why}: {reason}' if reason else why
    elif match := BY_OPERATOR.search(why):
        by, reason = _split_author(why[match.end() :])
        why = f'{why[: match.end(1)]}{reason}'
    return f'rollout {(record.event or "event").replace("_", " ")}{shown}', why, by


def _split_author(author: str) -> tuple[str, str]:
    """Return who and why of `kim@lab: reason`; what has no such name is who."""
    who, separator, why = author.partition(': ')
    return (who, why) if separator and ' ' not in who else (author, '')


def _state(record: StateRecord) -> tuple[str, str, str]:
    before, after = record.before or 'start', record.after or 'end'
    if record.component == 'slots':
        return HEALTH.get(after, after), record.reason or '', ''
    return f'{record.component}: {before} -> {after}', record.reason or '', ''


ROUTER, EDGE, SERVER = 'router', 'edge', 'server'
NO_POLICY = 'policy not known'
# states of an edge's parts that are counted for its robot
ROBOT_STATES = {
    ('cage', 'latched'): 'latched',
    ('rung', 'stop_service'): 'stopped',
    ('connection', 'stalled'): 'stalled',
    ('connection', 'dead'): 'given up',
}


@dataclass(frozen=True, slots=True)
class Decision:
    """
    One decision or change: time in seconds since 1970, node, what happened, the reason, and who
    made it as far as that is known.
    """

    time_s: float
    router: str
    what: str
    why: str
    by: str = ''


@dataclass(slots=True)
class History:
    """The decisions in time order, and counts by policy, robot and server."""

    decisions: list[Decision] = field(default_factory=list)
    # policy -> number of episodes that began with it
    episodes: Counter[str] = field(default_factory=Counter)
    # policy -> outcome -> number of episodes
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    # robot -> latched, stopped, stalled or given up -> number of times
    robots: dict[str, Counter[str]] = field(default_factory=dict)
    # server -> incident -> number of times
    servers: dict[str, Counter[str]] = field(default_factory=dict)


def read_history(paths: Iterable[Path | str], since_s: float | None = None) -> History:
    """Return what the traces have since a time. Raises TraceError."""
    reader = _Reader()
    for entry in TraceQuery(paths, with_actions=False).by_time():
        if since_s is None or entry.time_s >= since_s:
            reader.add(entry)
    return reader.history()


class _Reader:
    """Sorts the records of all runs, in time order."""

    def __init__(self) -> None:
        self._history = History()
        # episode -> policy and outcome; a router knows the policy with which it began
        self._outcomes: dict[str, tuple[str, str]] = {}
        self._reported: set[str] = set()

    def add(self, entry: TraceEntry) -> None:
        record, role, node, history = entry.record, entry.run.role, entry.run.node, self._history
        if isinstance(record, OutcomeRecord):
            self._add_outcome(record)
        elif isinstance(record, PlacementRecord) and not record.moved:
            history.episodes[record.policy or NO_POLICY] += 1
        elif role == SERVER and isinstance(record, IncidentRecord):
            history.servers.setdefault(node, Counter())[record.name or 'incident'] += 1
        elif role == EDGE and (what := _robot_state(record)):
            history.robots.setdefault(node, Counter())[what] += 1
        if is_decision(record, role) and (found := decision_text(record, role)):
            history.decisions.append(Decision(entry.time_s, node, *found))

    def history(self) -> History:
        for policy, outcome in self._outcomes.values():
            self._history.outcomes.setdefault(policy, Counter())[outcome] += 1
        return self._history

    def _add_outcome(self, record: OutcomeRecord) -> None:
        episode = record.episode_id or f'record {len(self._outcomes)}'
        is_reported = isinstance(record, ReportedOutcomeRecord)
        if episode in self._reported and not is_reported:
            return
        if is_reported:
            self._reported.add(episode)
        self._outcomes[episode] = record.policy or NO_POLICY, record.outcome or 'unknown'


def _robot_state(record: TraceRecord) -> str:
    """Return the word of a state that is counted, empty for another record."""
    if not isinstance(record, StateRecord):
        return ''
    return ROBOT_STATES.get((record.component or '', record.after or ''), '')


def history_report(history: History, traces: Sequence[str]) -> Report:
    """Return the decisions, then the counts of policies, robots and servers."""
    parts: list[Part] = [sources_line(traces), *map(decision_line, history.decisions)]
    if not history.decisions:
        parts.append('no decision')
    for title, rows in (
        ('episodes and outcomes of each policy:', _outcome_rows(history)),
        ('robots that halted or stalled:', _count_rows(history.robots)),
        ('servers with incidents:', _count_rows(history.servers)),
    ):
        if rows:
            parts += ['', title, Facts(rows)]
    return Report({'traces': list(traces), **msgspec.to_builtins(history)}, parts)


def decision_line(each: Decision) -> str:
    """Return one decision with its local time, reason and author."""
    at = format_local(each.time_s, day=True, to='seconds')
    why = f': {each.why}' if each.why else ''
    by = f' [by {each.by}]' if each.by else ''
    return f'{at}  {each.router}  {each.what}{why}{by}'


def _outcome_rows(history: History) -> list[tuple[str, str]]:
    """Return the episodes and outcomes of each policy."""
    rows = []
    for policy in sorted({*history.outcomes, *history.episodes}):
        counts = history.outcomes.get(policy, Counter())
        parts = [f'{count} {name}' for name, count in counts.most_common()]
        if begun := history.episodes.get(policy):
            parts.insert(0, f'{begun} episodes begun')
        rows.append((policy, ', '.join(parts)))
    return rows


def _count_rows(counts: Mapping[str, Counter[str]]) -> list[tuple[str, str]]:
    return [
        (name, ', '.join(f'{what} {count}x' for what, count in found.most_common()))
        for name, found in sorted(counts.items())
    ]
