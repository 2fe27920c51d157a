"""
The second and third reading: all that is told of a window. One thread.

First the edges of the robot, by the clock that chose the window. Then the others: requests of the
robot by their numbers alone, and how far each clock is off by them; then the rest of their window.
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

# what is usual is read off the minute before
BEFORE_S = 60.0
# an end that lies a little behind the window is no request that the edge does not know
TRAILING_S = 30.0
# who writes them writes one for each request or command
PER_STEP_KINDS = ('request', 'executed')
NAMES_SHOWN = 4
# who comes so soon after the first one came with him
START_GROUP_S = 2.0
LOST_STATES = ('reconnecting', 'dead')


def gather_facts(found: Survey, client: str, begin_s: float, end_s: float) -> WindowFacts:
    """Return what the traces tell of a window. Raises TraceError."""
    facts = WindowFacts(client, begin_s, end_s)
    known: set[JoinKey] = set()
    for run in found.edges:
        _read_edge(run, facts, known)
    for number_of_run, run in enumerate(found.others):
        if run.role == 'edge':
            _read_other_edge(run, facts)
        else:
            _read_peer(number_of_run, run, facts, known)
    facts.happenings.sort()
    return facts


def _read_edge(run: Source, facts: WindowFacts, known: set[JoinKey]) -> None:
    facts.has_edge = True
    changes: Record = {}
    playing, last = StallDetector(), _StepTracker()
    begin_s, end_s = facts.begin_s, facts.end_s
    for time_s, record in run.read():
        if record['kind'] == 'parameter' and time_s <= end_s:
            changes[text(record, 'name')] = record.get('new')
        is_his = text(record, 'client') in ('', facts.client)
        if not (is_his and begin_s - BEFORE_S <= time_s <= end_s + TRAILING_S):
            continue
        facts.edge_span_s = min(facts.edge_span_s[0], time_s), max(facts.edge_span_s[1], time_s)
        playing.see(time_s, record)
        if record['kind'] == 'request' and (key := key_of(record)):
            known.add(key)
            if time_s <= end_s:
                facts.requests[key] = JoinedRequest(key, time_s, record)
        if time_s > end_s:
            continue
        if record['kind'] == 'executed':
            last.see(record, facts.rough if time_s >= begin_s else facts.calm)
        elif time_s >= begin_s:
            _add_event(facts, time_s, run, record)
            _note_connection(facts, record)
    playing.finish()
    if last.is_met or not facts.parameters:
        # of two runs the one that drove in the window
        facts.parameters = run.parameters | changes
    facts.is_edge_complete &= not run.is_lossy
    for stall in playing.kept:
        if stall.end_s >= begin_s and stall.begin_s <= end_s:
            facts.stalls.append(stall)
        elif stall.end_s < begin_s:
            facts.earlier.append(stall)


class _StepTracker:
    """The command before, to find steps that were missed."""

    def __init__(self) -> None:
        self.is_met = False
        self._tick: int | None = None

    def see(self, record: Record, commands: CommandCounts) -> None:
        self.is_met = True
        verdict, tick = text(record, 'verdict'), integer(record, 'tick')
        commands.verdicts[verdict] += 1
        if verdict in TRIP_VERDICTS:
            commands.reasons[text(record, 'reason') or verdict] += 1
        is_played = text(record, 'rung') == 'play'
        if is_played and tick is not None and self._tick is not None:
            # nothing commanded between two steps of a chunk: nobody was there to command it
            commands.missed += max(0, min(tick - self._tick - 1, 1 << 31))
        self._tick = tick if is_played else None


def _note_connection(facts: WindowFacts, record: Record) -> None:
    is_connection = record['kind'] == 'state' and text(record, 'of') == 'connection'
    if is_connection and text(record, 'to') in LOST_STATES:
        facts.connection[text(record, 'why') or text(record, 'to')] += 1


def _read_other_edge(run: Source, facts: WindowFacts) -> None:
    """Whether another robot stalled at that time, as far as the clocks agree."""
    players: dict[str, StallDetector] = {}
    for time_s, record in run.read():
        name = text(record, 'client')
        if name and facts.begin_s - BEFORE_S <= time_s <= facts.end_s:
            players.setdefault(name, StallDetector()).see(time_s, record)
    for name, playing in players.items():
        playing.finish()
        stalls = [stall for stall in playing.kept if stall.end_s >= facts.begin_s]
        facts.stalls_of_others[name] += len(stalls)


def _read_peer(number_of_run: int, run: Source, facts: WindowFacts, known: set[JoinKey]) -> None:
    peer = PeerFacts(run.node, run.role)
    offs = list(_join(number_of_run, run, facts))
    peer.node, peer.role, peer.pairs = run.node, run.role, len(offs)
    peer.clock_offset_s = median(offs) if offs else 0.0
    onset_s, is_there = facts.onset_s, bool(offs)
    for time_s, record in run.read():
        moment_s = time_s - peer.clock_offset_s
        peer.begin_s = moment_s if peer.begin_s is None else min(peer.begin_s, moment_s)
        peer.end_s = moment_s if peer.end_s is None else max(peer.end_s, moment_s)
        if not facts.begin_s - BEFORE_S <= moment_s <= facts.end_s:
            continue
        is_there |= text(record, 'client') == facts.client
        if record['kind'] == 'request':
            _count_request(peer, facts, onset_s, moment_s, record)
            _add_unmatched(number_of_run, peer, facts, known, moment_s, record)
        elif moment_s >= facts.begin_s and text(record, 'client') in ('', facts.client):
            _add_event(facts, moment_s, run, record)
            _note_routing(peer, facts, record)
    peer.is_whole, peer.is_ended = not run.is_lossy, run.is_ended
    if is_there or peer.seen[1]:
        facts.peers.append(peer)
        _add_new_clients(peer, facts)


def _join(number_of_run: int, run: Source, facts: WindowFacts) -> Iterable[float]:
    """Join by numbers; hand out by how much the run's clock is ahead by each answered request."""
    for time_s, record in run.read():
        if record['kind'] != 'request' or text(record, 'client') != facts.client:
            continue
        request = facts.requests.get(key_of(record))
        if request is None:
            continue
        where = request.routers if run.role == 'router' else request.servers
        if any(told.run == number_of_run for told in where):
            continue
        where.append(PeerRecord(number_of_run, time_s, record))
        if request.round_trip_ms is not None:
            yield time_s - request.end_s


def _count_request(
    peer: PeerFacts, facts: WindowFacts, onset_s: float, moment_s: float, record: Record
) -> None:
    """Count a request of anybody as before or during."""
    client = text(record, 'client')
    peer.first_s.setdefault(client, moment_s)
    if moment_s > facts.trouble_s[1]:
        return
    is_during = moment_s >= onset_s
    peer.seen[is_during] += 1
    if is_during:
        peer.statuses[client, text(record, 'status')] += 1
    wait_ms = number(record, 'queue_wait_ms')
    if wait_ms is not None:
        peer.waits.setdefault(client, ([], []))[is_during].append(wait_ms)


def _add_new_clients(peer: PeerFacts, facts: WindowFacts) -> None:
    """Who asks for the first time in the window, in one line."""
    opened_s = min(peer.first_s.values(), default=0.0) + START_GROUP_S
    first = {n: s for n, s in peer.first_s.items() if n and s >= max(opened_s, facts.begin_s)}
    if not first:
        return
    names = sorted(first)
    shown = ', '.join(names[:NAMES_SHOWN]) + ', ...' * (len(names) > NAMES_SHOWN)
    words = f'{len(names)} robots ask that did not before: {shown}'
    facts.happenings.append(TimelineEvent(min(first.values()), peer.node, words))


def _add_unmatched(
    number_of_run: int,
    peer: PeerFacts,
    facts: WindowFacts,
    known: set[JoinKey],
    moment_s: float,
    record: Record,
) -> None:
    """Keep a request of the robot of which its edge tells nothing."""
    key = key_of(record)
    if text(record, 'client') != facts.client or key is None or key in known:
        return
    if facts.has_edge and not facts.edge_span_s[0] <= moment_s <= facts.edge_span_s[1]:
        # its edge was not there yet, or was killed, and could not tell
        return
    request = facts.requests.setdefault(key, JoinedRequest(key, moment_s))
    where = request.routers if peer.role == 'router' else request.servers
    if all(told.run != number_of_run for told in where):
        where.append(PeerRecord(number_of_run, moment_s, record))


def _note_routing(peer: PeerFacts, facts: WindowFacts, record: Record) -> None:
    if record['kind'] == 'placement' and record.get('moved') is True:
        facts.moves.append(describe_record(record))
    is_verdict = record['kind'] == 'state' and text(record, 'of') == 'slots'
    if is_verdict and text(record, 'to') not in ('', 'healthy'):
        peer.slot_changes.append(describe_record(record))


def _add_event(facts: WindowFacts, time_s: float, run: Source, record: Record) -> None:
    if record['kind'] not in PER_STEP_KINDS and (words := describe_record(record)):
        facts.happenings.append(TimelineEvent(time_s, run.node, words))
