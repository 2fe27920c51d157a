# SPDX-License-Identifier: Apache-2.0
"""
The facts about one window of time that the rules use, and how counts and medians before the stall
differ from those during it. Plain; one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import inf
from statistics import median

from lerobot_serve.tools.diagnosis.finding import Span
from lerobot_serve.tools.diagnosis.timeline import JoinedRequest, JoinKey, TIMED_OUT, TimelineEvent
from lerobot_serve.tools.traces.fields import number
from lerobot_serve.tools.traces.stalls import HELD, Stall
from lerobot_serve.trace.format.records import ExecutedRecord, Record

# growth: at least this factor and this difference
GROWTH, GROWTH_MS = 2.0, 20.0
# upper bound of a value in ms
LARGEST = 1e12
# a single slow request during the stall suffices; the usual value needs several before
BEFORE_MIN, DURING_MIN = 3, 1


@dataclass(frozen=True, slots=True)
class MedianShift:
    """Counts and medians of values [ms] before and during the stall."""

    before_n: int
    before_p50: float | None
    during_n: int
    during_p50: float | None

    @property
    def is_known(self) -> bool:
        return self.before_n >= BEFORE_MIN and self.during_n >= DURING_MIN

    @property
    def has_grown(self) -> bool:
        """Whether both medians are known and the value grew."""
        if not self.is_known or self.before_p50 is None or self.during_p50 is None:
            return False
        return has_grown(self.before_p50, self.during_p50)

    def exceeds(self, bound_ms: float) -> bool:
        """Return whether both medians are known and none is below the bound."""
        if self.before_p50 is None or self.during_p50 is None:
            return False
        return min(self.before_p50, self.during_p50) >= bound_ms

    @property
    def text(self) -> str:
        """The count and p50 before and during."""
        before = _count_and_median(self.before_n, self.before_p50)
        during = _count_and_median(self.during_n, self.during_p50)
        return f'before {before}, during {during}'


def median_shift(before: Iterable[float | None], during: Iterable[float | None]) -> MedianShift:
    """Compare the known values before and during."""
    first, second = ([v for v in values if v is not None] for values in (before, during))
    return MedianShift(len(first), _middle(first), len(second), _middle(second))


def has_grown(before_ms: float, during_ms: float) -> bool:
    """Return whether the second median is far enough above the first."""
    return during_ms >= max(GROWTH * before_ms, before_ms + GROWTH_MS)


def _middle(values: list[float]) -> float | None:
    return min(median(values), LARGEST) if values else None


def _count_and_median(n: int, p50: float | None) -> str:
    return f'n {n}' if p50 is None else f'n {n} p50 {p50:.0f} ms'


CLAMPED, INTERLOCK = 'clamped', ' overrides '
# the usual values come from the minute before
BEFORE_S = 60.0
# a reply that ends a stall arrives shortly before the first command from it
GRACE_S = 0.3
MISSING_TRACE_TEXT = {
    'edge': 'no trace of its edge: set trace_folder of edge_controller',
    'router': 'no trace of its router: set trace_folder of policy_router',
    'server': 'no trace of its server: set trace_folder of policy_server',
}


@dataclass(slots=True)
class CommandCounts:
    """
    Commands of an edge in a period: `count` all, `played` those of a policy or a person,
    `reasons` why the cage clamped those to a limit, `held` why it held them; `missed` control
    steps between them.
    """

    count: int = 0
    played: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    held: Counter[str] = field(default_factory=Counter)
    missed: int = 0

    def add(self, record: ExecutedRecord) -> None:
        """Count a command; those of the ladder, as after an episode, are not played."""
        self.count += 1
        if record.cage_result == HELD:
            self.held[record.reason] += 1
        if not (record.is_played or record.is_by_person):
            return
        self.played += 1
        if record.cage_result == CLAMPED and INTERLOCK not in record.reason:
            self.reasons[record.reason or CLAMPED] += 1

    @property
    def clamped(self) -> int:
        return self.reasons.total()


@dataclass(slots=True)
class PeerFacts:
    """
    Facts from the trace of one router or server.

    clock_offset_s  lead of its clock over the robot's, from the `joined_requests`
    waits           client -> its queue waits [ms] before and during the stall
    statuses        of all clients' requests during the stall: (client, status)
    request_counts  requests of all clients, before and during
    still_spans     when its process did not run
    is_complete     its trace is neither damaged nor missing records
    first_s         client -> time of its first request
    span_s          period of its trace, by the clock of the robot; `is_ended`: with a footer
    """

    node: str
    role: str
    clock_offset_s: float = 0.0
    joined_requests: int = 0
    waits: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    request_counts: list[int] = field(default_factory=lambda: [0, 0])
    is_complete: bool = True
    slot_changes: list[str] = field(default_factory=list)
    still_spans: list[Span] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)
    span_s: tuple[float, float] | None = None
    is_ended: bool = True

    def extend_to(self, moment_s: float) -> None:
        """Extend the period to a record of that time."""
        first_s, last_s = self.span_s or (moment_s, moment_s)
        self.span_s = min(first_s, moment_s), max(last_s, moment_s)


@dataclass(slots=True)
class WindowFacts:
    """
    Facts about one window of one robot.

    begin_s, end_s     the window, by the clock of the robot
    has_edge           a trace of the robot's edge exists; `is_edge_complete`: without gaps
    edge_span_s        first and last time of its edge in and around the window
    parameters         of the robot's edge in the window
    stalls             of the robot in the window; `earlier_stalls` of the minute before it
    starved_spans      when the edge did not run its control steps
    stale_spans        when the state of the robot was missing or stale; `stale_reasons` of inputs
    lost_spans         when the edge had no session
    until_s            until when a request kept the robot from sending another one
    requests           those that ended in the window or the minute before
    commands_before    commands before the stall; `commands_during` in the window
    episode_moves      texts of the decisions that moved an episode of the robot
    stalls_of_others   other robots with an edge trace of the window -> number of their stalls
    """

    client: str
    begin_s: float
    end_s: float
    has_edge: bool = False
    edge_span_s: tuple[float, float] = inf, -inf
    is_edge_complete: bool = True
    parameters: Record = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    earlier_stalls: list[Stall] = field(default_factory=list)
    starved_spans: list[Span] = field(default_factory=list)
    stale_spans: list[Span] = field(default_factory=list)
    stale_reasons: list[str] = field(default_factory=list)
    lost_spans: list[Span] = field(default_factory=list)
    until_s: dict[JoinKey, float] = field(default_factory=dict)
    requests: dict[JoinKey, JoinedRequest] = field(default_factory=dict)
    events: list[TimelineEvent] = field(default_factory=list)
    commands_before: CommandCounts = field(default_factory=CommandCounts)
    commands_during: CommandCounts = field(default_factory=CommandCounts)
    episode_moves: list[str] = field(default_factory=list)
    connection_losses: Counter[str] = field(default_factory=Counter)
    peers: list[PeerFacts] = field(default_factory=list)
    stalls_of_others: Counter[str] = field(default_factory=Counter)

    def of_window(self, spans: Iterable[Span]) -> tuple[Span, ...]:
        """Return those that reach into the stalls, or without a stall into the window."""
        first_s, last_s = self.stall_span_s
        return tuple(span for span in spans if span[0] <= last_s and first_s <= span[1])

    @property
    def stall_spans(self) -> list[Span]:
        return [(stall.begin_s, stall.end_s) for stall in self.stalls]

    @property
    def stall_span_s(self) -> tuple[float, float]:
        """First to last stall of the window; the whole window without a stall."""
        if not self.stalls:
            return self.begin_s, self.end_s
        return self.stalls[0].begin_s, max(s.end_s for s in self.stalls) + GRACE_S

    @property
    def onset_s(self) -> float:
        """Send time of the first request in flight during the stall."""
        return min([self.stall_span_s[0], *(self.sent_s(request) for request in self.during)])

    def sent_s(self, request: JoinedRequest) -> float:
        """Return the send time; of an abandoned request the latest that is possible."""
        if request.status == TIMED_OUT:
            return request.end_s - (number(self.parameters, 'request_timeout_s') or 0.0)
        return request.end_s - (request.round_trip_ms or request.server_ms or 0.0) / 1e3

    def find_ends(self) -> None:
        """Set `until_s` of all requests, whenever there are new ones."""
        ordered = sorted(self.requests.values(), key=self.sent_s)
        next_s = [*(self.sent_s(request) for request in ordered[1:]), self.end_s]
        for request, sent_s in zip(ordered, next_s, strict=False):
            lost_s = min((b for b, _ in self.lost_spans if b > request.end_s), default=inf)
            is_ok = request.status == 'ok'
            until_s = request.end_s if is_ok else max(request.end_s, min(sent_s, lost_s))
            self.until_s[request.key] = until_s

    def is_in_stall(self, request: JoinedRequest) -> bool:
        """
        Return whether the robot stalled while a request was in flight, or while it had no other
        one after this one failed.
        """
        spans = [(s.begin_s, s.end_s + GRACE_S) for s in self.stalls] or [self.stall_span_s]
        return self._overlaps(request, spans)

    def is_before(self, request: JoinedRequest) -> bool:
        """Return whether a request ended before the stall and outside earlier stalls."""
        earlier = [(s.begin_s, s.end_s + GRACE_S) for s in self.earlier_stalls]
        return request.end_s < self.stall_span_s[0] and not self._overlaps(request, earlier)

    def _overlaps(self, request: JoinedRequest, spans: list[tuple[float, float]]) -> bool:
        sent_s, until_s = self.sent_s(request), self.until_s.get(request.key, request.end_s)
        return any(sent_s <= last and first <= until_s for first, last in spans)

    @property
    def during(self) -> list[JoinedRequest]:
        return [request for request in self.requests.values() if self.is_in_stall(request)]

    @property
    def before(self) -> list[JoinedRequest]:
        return [r for r in self.requests.values() if self.is_before(r) and not self.is_in_stall(r)]

    def shift_of(self, value: Callable[[JoinedRequest], float | None]) -> MedianShift:
        """Compare a value of the robot's requests before and during the stall."""
        return median_shift(map(value, self.before), map(value, self.during))

    def of_role(self, role: str) -> Iterator[PeerFacts]:
        return (peer for peer in self.peers if peer.role == role)

    @property
    def missing_traces(self) -> list[str]:
        """A text for each missing trace, with the parameter that enables it."""
        there = {peer.role for peer in self.peers} | ({'edge'} if self.has_edge else set())
        return [words for role, words in MISSING_TRACE_TEXT.items() if role not in there]
