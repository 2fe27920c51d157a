# SPDX-License-Identifier: Apache-2.0
"""
Second and third pass: gathers the facts about a window. One thread.

The edges of the robot come first, by the clock that chose the window. Then the other runs:
requests of the robot are joined by number, which gives the clock offset; then the rest of their
window.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest, JoinKey, key_of, PeerRecord
from lerobot_serve.tools.diagnosis.source import Source
from lerobot_serve.tools.diagnosis.survey import Survey
from lerobot_serve.tools.diagnosis.timeline_event import describe_record, TimelineEvent
from lerobot_serve.tools.diagnosis.window_facts import (
    CommandCounts,
    PeerFacts,
    TRIP_VERDICTS,
    WindowFacts,
)
from lerobot_serve.tools.traces.fields import integer, number, Record, text
from lerobot_serve.tools.traces.stalls import StallDetector

# the usual values come from the minute before
BEFORE_S = 60.0
# the edge's records of requests that end after the window
TRAILING_S = 30.0
# one record per request or command
PER_STEP_KINDS = ('request', 'executed')
NAMES_SHOWN = 4
# clients that start this soon after the first one count as present from the start
START_GROUP_S = 2.0
LOST_STATES = ('reconnecting', 'dead')


def gather_facts(found: Survey, client: str, begin_s: float, end_s: float) -> WindowFacts:
    """Gather the facts about a window. Raises TraceError."""
    facts = WindowFacts(client, begin_s, end_s)
    known: set[JoinKey] = set()
    for run in found.edges:
        _read_edge(run, facts, known)
    for number_of_run, run in enumerate(found.others):
        if run.role == 'edge':
            _read_other_edge(run, facts)
        else:
            _read_peer(number_of_run, run, facts, known)
    facts.events.sort()
    return facts


def _read_edge(run: Source, facts: WindowFacts, known: set[JoinKey]) -> None:
    facts.has_edge = True
    changes: Record = {}
    playing, last = StallDetector(), _StepTracker()
    begin_s, end_s = facts.begin_s, facts.end_s
    for time_s, record in run.read():
        if record['kind'] == 'parameter' and time_s <= end_s:
            changes[text(record, 'name')] = record.get('new')
        is_his = text(record, 'client_id') in ('', facts.client)
        if not (is_his and begin_s - BEFORE_S <= time_s <= end_s + TRAILING_S):
            continue
        facts.edge_span_s = min(facts.edge_span_s[0], time_s), max(facts.edge_span_s[1], time_s)
        playing.add_record(time_s, record)
        if record['kind'] == 'request' and (key := key_of(record)):
            known.add(key)
            if time_s <= end_s:
                facts.requests[key] = JoinedRequest(key, time_s, record)
        if time_s > end_s:
            continue
        if record['kind'] == 'executed':
            last.add(record, facts.commands_during if time_s >= begin_s else facts.commands_before)
        elif time_s >= begin_s:
            _add_event(facts, time_s, run, record)
            _note_connection(facts, record)
    playing.finish()
    if last.is_met or not facts.parameters:
        # of two runs, take the one with commands in the window
        facts.parameters = run.parameters | changes
    facts.is_edge_complete &= not run.is_lossy
    for stall in playing.longest:
        if stall.end_s >= begin_s and stall.begin_s <= end_s:
            facts.stalls.append(stall)
        elif stall.end_s < begin_s:
            facts.earlier_stalls.append(stall)


class _StepTracker:
    """The previous command, to count missed control steps."""

    def __init__(self) -> None:
        self.is_met = False
        self._tick: int | None = None

    def add(self, record: Record, commands: CommandCounts) -> None:
        self.is_met = True
        verdict, tick = text(record, 'cage_result'), integer(record, 'control_step')
        commands.verdicts[verdict] += 1
        if verdict in TRIP_VERDICTS:
            commands.reasons[text(record, 'reason') or verdict] += 1
        is_played = text(record, 'rung') == 'policy'
        if is_played and tick is not None and self._tick is not None:
            # no command between two steps of a chunk: control steps were missed
            commands.missed += max(0, min(tick - self._tick - 1, 1 << 31))
        self._tick = tick if is_played else None


def _note_connection(facts: WindowFacts, record: Record) -> None:
    is_connection = record['kind'] == 'state' and text(record, 'component') == 'connection'
    if is_connection and text(record, 'to') in LOST_STATES:
        facts.connection_losses[text(record, 'reason') or text(record, 'to')] += 1


def _read_other_edge(run: Source, facts: WindowFacts) -> None:
    """Count stalls of other robots in the window, by their own clocks."""
    players: dict[str, StallDetector] = {}
    for time_s, record in run.read():
        name = text(record, 'client_id')
        if name and facts.begin_s - BEFORE_S <= time_s <= facts.end_s:
            players.setdefault(name, StallDetector()).add_record(time_s, record)
    for name, playing in players.items():
        playing.finish()
        stalls = [stall for stall in playing.longest if stall.end_s >= facts.begin_s]
        facts.stalls_of_others[name] += len(stalls)


def _read_peer(number_of_run: int, run: Source, facts: WindowFacts, known: set[JoinKey]) -> None:
    peer = PeerFacts(run.node, run.role)
    offs = list(_join(number_of_run, run, facts))
    peer.node, peer.role, peer.joined_requests = run.node, run.role, len(offs)
    peer.clock_offset_s = median(offs) if offs else 0.0
    onset_s, is_there = facts.onset_s, bool(offs)
    for time_s, record in run.read():
        moment_s = time_s - peer.clock_offset_s
        peer.begin_s = moment_s if peer.begin_s is None else min(peer.begin_s, moment_s)
        peer.end_s = moment_s if peer.end_s is None else max(peer.end_s, moment_s)
        if not facts.begin_s - BEFORE_S <= moment_s <= facts.end_s:
            continue
        is_there |= text(record, 'client_id') == facts.client
        if record['kind'] == 'request':
            _count_request(peer, facts, onset_s, moment_s, record)
            _add_unmatched(number_of_run, peer, facts, known, moment_s, record)
        elif moment_s >= facts.begin_s and text(record, 'client_id') in ('', facts.client):
            _add_event(facts, moment_s, run, record)
            _note_routing(peer, facts, record)
    peer.is_complete, peer.is_ended = not run.is_lossy, run.is_ended
    if is_there or peer.request_counts[1]:
        facts.peers.append(peer)
        _add_new_clients(peer, facts)


def _join(number_of_run: int, run: Source, facts: WindowFacts) -> Iterable[float]:
    """Join by number; yield the clock offset of the run from each request with a reply."""
    for time_s, record in run.read():
        if record['kind'] != 'request' or text(record, 'client_id') != facts.client:
            continue
        request = facts.requests.get(key_of(record))
        if request is None:
            continue
        where = request.router_records if run.role == 'router' else request.server_records
        if any(each.run == number_of_run for each in where):
            continue
        where.append(PeerRecord(number_of_run, time_s, record))
        if request.round_trip_ms is not None:
            yield time_s - request.end_s


def _count_request(
    peer: PeerFacts, facts: WindowFacts, onset_s: float, moment_s: float, record: Record
) -> None:
    """Count a request of any client as before or during."""
    client = text(record, 'client_id')
    peer.first_s.setdefault(client, moment_s)
    if moment_s > facts.trouble_s[1]:
        return
    is_during = moment_s >= onset_s
    peer.request_counts[is_during] += 1
    if is_during:
        peer.statuses[client, text(record, 'status')] += 1
    wait_ms = number(record, 'queue_wait_ms')
    if wait_ms is not None:
        peer.waits.setdefault(client, ([], []))[is_during].append(wait_ms)


def _add_new_clients(peer: PeerFacts, facts: WindowFacts) -> None:
    """Add one event for the clients that start in the window."""
    opened_s = min(peer.first_s.values(), default=0.0) + START_GROUP_S
    first = {n: s for n, s in peer.first_s.items() if n and s >= max(opened_s, facts.begin_s)}
    if not first:
        return
    names = sorted(first)
    shown = ', '.join(names[:NAMES_SHOWN]) + ', ...' * (len(names) > NAMES_SHOWN)
    words = f'{len(names)} new clients: {shown}'
    facts.events.append(TimelineEvent(min(first.values()), peer.node, words))


def _add_unmatched(
    number_of_run: int,
    peer: PeerFacts,
    facts: WindowFacts,
    known: set[JoinKey],
    moment_s: float,
    record: Record,
) -> None:
    """Add a request of the robot that its edge did not record."""
    key = key_of(record)
    if text(record, 'client_id') != facts.client or key is None or key in known:
        return
    if facts.has_edge and not facts.edge_span_s[0] <= moment_s <= facts.edge_span_s[1]:
        # its edge was not running
        return
    request = facts.requests.setdefault(key, JoinedRequest(key, moment_s))
    where = request.router_records if peer.role == 'router' else request.server_records
    if all(each.run != number_of_run for each in where):
        where.append(PeerRecord(number_of_run, moment_s, record))


def _note_routing(peer: PeerFacts, facts: WindowFacts, record: Record) -> None:
    if record['kind'] == 'placement' and record.get('moved') is True:
        facts.episode_moves.append(describe_record(record))
    is_verdict = record['kind'] == 'state' and text(record, 'component') == 'slots'
    if is_verdict and text(record, 'to') not in ('', 'healthy'):
        peer.slot_changes.append(describe_record(record))


def _add_event(facts: WindowFacts, time_s: float, run: Source, record: Record) -> None:
    if record['kind'] not in PER_STEP_KINDS and (words := describe_record(record)):
        facts.events.append(TimelineEvent(time_s, run.node, words))
