# SPDX-License-Identifier: Apache-2.0
"""
Second and third pass: gathers the facts about a window. One thread.

The edges of the robot are read first; the window is in their clock. Then the other runs: requests
of the robot are joined by number, which gives the clock offset; then the other records of the
window are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from lerobot_serve.tools.diagnosis.finding import Span
from lerobot_serve.tools.diagnosis.survey import Survey
from lerobot_serve.tools.diagnosis.timeline import (
    describe_record,
    JoinedRequest,
    JoinKey,
    key_of,
    PeerRecord,
    TimelineEvent,
)
from lerobot_serve.tools.diagnosis.window_facts import (
    BEFORE_S,
    CommandCounts,
    PeerFacts,
    WindowFacts,
)
from lerobot_serve.tools.traces.fields import number
from lerobot_serve.tools.traces.stalls import GAP_S, Stall, StallDetector
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import (
    DropRecord,
    ExecutedRecord,
    ParameterRecord,
    PlacementRecord,
    Record,
    RequestRecord,
    StateRecord,
    TraceRecord,
)

# time after the window in which the edge may record the end of a request
TRAILING_S = 30.0
NAMES_SHOWN = 4
# clients that start within this time after the first one count as present from the start
START_GROUP_S = 2.0
LOST_STATES = ('reconnecting', 'dead')
STALE = 'stale'
# the reason of a drop
STATE_MISSING = 'state_missing'
# so many in a row are no jitter of a busy machine
STARVED_STEPS = 3
# share of a period that a step may be early without being a missed one
ROOM = 0.3


def gather_facts(found: Survey, client: str, begin_s: float, end_s: float) -> WindowFacts:
    """Gather the facts about a window. Raises TraceError."""
    facts = WindowFacts(client, begin_s, end_s)
    known: set[JoinKey] = set()
    seen = [stall for run in found.edges for stall in _read_edge(run, facts, known)]
    # the survey has the longest stalls only, and those whole
    _add_stalls(facts, [*seen, *found.stalls])
    facts.find_ends()
    for run in found.others:
        if run.role == 'edge':
            _read_other_edge(run, facts)
        else:
            _PeerReader(run, facts, known).read()
    facts.find_ends()
    facts.events.sort()
    return facts


def _read_edge(run: TraceRun, facts: WindowFacts, known: set[JoinKey]) -> list[Stall]:
    """Read a run of the robot's edge; return the stalls that begin in or around the window."""
    facts.has_edge = True
    changes: Record = {}
    stalls = StallDetector(with_holds=True)
    steps, lost = _StepTracker(run), _OpenSpan(LOST_STATES, facts.lost_spans)
    stale = _OpenSpan((STALE,), facts.stale_spans)
    # from the loss of the state until commands come again
    silent = _OpenSpan((STATE_MISSING,), facts.stale_spans)
    begin_s, end_s = facts.begin_s, facts.end_s
    for time_s, _, record in run.read():
        if isinstance(record, ParameterRecord) and time_s <= end_s:
            changes[record.name] = record.new
        is_own = record.client_id in ('', facts.client)
        if not (is_own and begin_s - BEFORE_S <= time_s <= end_s + TRAILING_S):
            continue
        facts.edge_span_s = min(facts.edge_span_s[0], time_s), max(facts.edge_span_s[1], time_s)
        stalls.add_record(time_s, record)
        if isinstance(record, RequestRecord) and (key := key_of(record)):
            known.add(key)
            if time_s <= end_s:
                facts.requests[key] = JoinedRequest(key, time_s, record)
        if time_s > end_s:
            continue
        if span := stood_still(record, time_s):
            facts.starved_spans.append(span)
        if isinstance(record, StateRecord) and record.component == 'connection':
            lost.to(time_s, record.after)
            if time_s >= begin_s and record.after in LOST_STATES:
                facts.connection_losses[record.reason or record.after] += 1
        if isinstance(record, StateRecord) and record.component == 'inputs':
            stale.to(time_s, record.after)
            facts.stale_reasons += [record.reason] if record.after == STALE else []
        if isinstance(record, DropRecord) and record.reason == STATE_MISSING:
            silent.to(time_s, STATE_MISSING)
        if isinstance(record, ExecutedRecord):
            if silent.to(time_s, ''):
                steps.forget()
            is_during = time_s >= begin_s
            counts = facts.commands_during if is_during else facts.commands_before
            steps.add(time_s, record, facts, counts)
        elif time_s >= begin_s:
            _add_event(facts, time_s, run, record)
    stalls.finish()
    for each in (lost, stale, silent):
        each.to(min(facts.edge_span_s[1], end_s), '')
    if steps.has_commands or not facts.parameters:
        # of two runs, use the one with commands in the window
        facts.parameters = run.header_parameters | changes
    facts.is_edge_complete &= not run.is_lossy
    return stalls.longest


def _add_stalls(facts: WindowFacts, stalls: list[Stall]) -> None:
    """Add the stalls of the window and of the minute before it; of two the last one counts."""
    by_begin = {stall.begin_s: stall for stall in stalls}
    for _, stall in sorted(by_begin.items()):
        if stall.begin_s <= facts.end_s and stall.end_s >= facts.begin_s:
            facts.stalls.append(stall)
        elif facts.begin_s - BEFORE_S <= stall.end_s < facts.begin_s:
            facts.earlier_stalls.append(stall)


class _StepTracker:
    """The previous command, to find control steps that were missed, and commands held."""

    def __init__(self, run: TraceRun) -> None:
        self.has_commands = False
        fps = number(run.header_parameters, 'fps') or 0.0
        multiplier = number(run.header_parameters, 'interpolation_multiplier') or 1.0
        self._period_s = 1 / (fps * multiplier) if fps > 0 < multiplier else 0.0
        self._before: tuple[float, int] | None = None

    def add(
        self, time_s: float, record: ExecutedRecord, facts: WindowFacts, commands: CommandCounts
    ) -> None:
        self.has_commands = True
        commands.add(record)
        before, self._before = self._before, None
        if record.control_step is not None:
            self._before = time_s, record.control_step
        if before is None or self._before is None:
            return
        if record.is_held_for_state:
            facts.stale_spans.append((before[0], time_s))
        missed = self._missed(time_s - before[0], self._before[1] - before[1])
        # numbers skip no step that was missed
        commands.missed += max(0, missed)
        if missed >= STARVED_STEPS and time_s - before[0] > GAP_S:
            facts.starved_spans.append((before[0], time_s))

    def forget(self) -> None:
        """Begin again: the edge commanded nothing, and its steps went on."""
        self._before = None

    def _missed(self, passed_s: float, steps: int) -> int:
        """Return how many more steps the time had room for; one that is late is none."""
        if not self._period_s or steps < 1:
            return 0
        return int(passed_s / self._period_s + ROOM) - steps


class _OpenSpan:
    """Collects the spans in which a component is in one of some states."""

    def __init__(self, states: tuple[str, ...], spans: list[Span]) -> None:
        self._states, self._spans = states, spans
        self._begin_s: float | None = None

    def to(self, time_s: float, state: str) -> bool:
        """Note the state from now on, empty at the end of the trace; return whether one ends."""
        if state in self._states:
            self._begin_s = time_s if self._begin_s is None else self._begin_s
        elif self._begin_s is not None:
            self._spans.append((self._begin_s, time_s))
            self._begin_s = None
            return True
        return False


def stood_still(record: TraceRecord, time_s: float) -> Span | None:
    """Return the span in which a process did not run, of the record that it writes afterwards."""
    if not isinstance(record, StateRecord) or record.component != 'process':
        return None
    try:
        return time_s - float(record.reason.removesuffix(' s')), time_s
    except ValueError:
        return None


def _read_other_edge(run: TraceRun, facts: WindowFacts) -> None:
    """Count stalls of other robots in the window, by their own clocks."""
    detectors: dict[str, StallDetector] = {}
    for time_s, _, record in run.read():
        name = record.client_id
        if name and facts.begin_s - BEFORE_S <= time_s <= facts.end_s:
            detectors.setdefault(name, StallDetector(with_holds=True)).add_record(time_s, record)
    for name, detector in detectors.items():
        detector.finish()
        stalls = [stall for stall in detector.longest if stall.end_s >= facts.begin_s]
        facts.stalls_of_others[name] += len(stalls)


class _PeerReader:
    """
    Reads one run of a router or server twice: to join its requests with those of the robot, which
    gives the offset of its clock, then for the facts of the window. `known` has the keys of the
    requests that an edge recorded.
    """

    def __init__(self, run: TraceRun, facts: WindowFacts, known: set[JoinKey]) -> None:
        self._run, self._facts, self._known = run, facts, known
        self._peer = PeerFacts(run.node, run.role)

    def read(self) -> None:
        """Add the facts, if the run has any of the window. Raises TraceError."""
        run, peer, facts = self._run, self._peer, self._facts
        offsets = list(self._join())
        peer.node, peer.role, peer.joined_requests = run.node, run.role, len(offsets)
        peer.clock_offset_s = median(offsets) if offsets else 0.0
        onset_s, has_robot = facts.onset_s, bool(offsets)
        for time_s, _, record in run.read():
            moment_s = time_s - peer.clock_offset_s
            peer.extend_to(moment_s)
            if not facts.begin_s - BEFORE_S <= moment_s <= facts.end_s:
                continue
            has_robot |= record.client_id == facts.client
            if isinstance(record, RequestRecord):
                self._count_request(onset_s, moment_s, record)
                self._add_unmatched(moment_s, record)
            elif moment_s >= facts.begin_s and record.client_id in ('', facts.client):
                if span := stood_still(record, moment_s):
                    peer.still_spans.append(span)
                _add_event(facts, moment_s, run, record)
                self._record_routing(record)
        peer.is_complete, peer.is_ended = not run.is_lossy, run.is_ended
        if has_robot or peer.request_counts[1]:
            facts.peers.append(peer)
            self._add_new_clients()

    def _join(self) -> Iterator[float]:
        """Join by number; yield the clock offset of the run from each request with a reply."""
        for time_s, _, record in self._run.read():
            if not isinstance(record, RequestRecord) or record.client_id != self._facts.client:
                continue
            key = key_of(record)
            request = self._facts.requests.get(key) if key else None
            if request is None or not self._add_to(request, time_s, record):
                continue
            if request.round_trip_ms is not None:
                yield time_s - request.end_s

    def _add_to(self, request: JoinedRequest, time_s: float, record: RequestRecord) -> bool:
        """Add the run's first record of a request; return whether it is the first."""
        is_router = self._run.role == 'router'
        joined = request.router_records if is_router else request.server_records
        number = self._run.number
        if any(each.run == number for each in joined):
            return False
        joined.append(PeerRecord(number, time_s, record))
        return True

    def _count_request(self, onset_s: float, moment_s: float, record: RequestRecord) -> None:
        """Count a request of any client as before or during."""
        peer, client = self._peer, record.client_id
        peer.first_s.setdefault(client, moment_s)
        if moment_s > self._facts.stall_span_s[1]:
            return
        is_during = moment_s >= onset_s
        peer.request_counts[is_during] += 1
        if is_during:
            peer.statuses[client, record.status] += 1
        wait_ms = record.queue_wait_ms
        if wait_ms is not None:
            peer.waits.setdefault(client, ([], []))[is_during].append(wait_ms)

    def _add_unmatched(self, moment_s: float, record: RequestRecord) -> None:
        """Add a request of the robot that its edge did not record."""
        key, facts = key_of(record), self._facts
        if record.client_id != facts.client or key is None or key in self._known:
            return
        if facts.has_edge and not facts.edge_span_s[0] <= moment_s <= facts.edge_span_s[1]:
            # its edge was not running
            return
        request = facts.requests.setdefault(key, JoinedRequest(key, moment_s))
        self._add_to(request, moment_s, record)

    def _add_new_clients(self) -> None:
        """Add one event for the clients that start in the window."""
        peer, facts = self._peer, self._facts
        opened_s = min(peer.first_s.values(), default=0.0) + START_GROUP_S
        first = {n: s for n, s in peer.first_s.items() if n and s >= max(opened_s, facts.begin_s)}
        if not first:
            return
        names = sorted(first)
        shown = ', '.join(names[:NAMES_SHOWN]) + ', ...' * (len(names) > NAMES_SHOWN)
        started = f'{len(names)} new clients: {shown}'
        facts.events.append(TimelineEvent(min(first.values()), peer.node, started))

    def _record_routing(self, record: TraceRecord) -> None:
        if isinstance(record, PlacementRecord) and record.moved:
            self._facts.episode_moves.append(describe_record(record))
        elif isinstance(record, StateRecord) and is_slot_failure(record):
            self._peer.slot_changes.append(describe_record(record))


def is_slot_failure(record: StateRecord) -> bool:
    """Return whether the slots of a router are no longer healthy."""
    return record.component == 'slots' and record.after not in ('', 'healthy')


def _add_event(facts: WindowFacts, time_s: float, run: TraceRun, record: TraceRecord) -> None:
    if event := describe_record(record):
        facts.events.append(TimelineEvent(time_s, run.node, event))
