"""What the rules ask for: everything that is told of one stretch of time. Plain; one thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import inf

from lerobot_serve.tools.diagnosis.joined_request import JoinedRequest, JoinKey
from lerobot_serve.tools.diagnosis.median_shift import median_shift, MedianShift
from lerobot_serve.tools.diagnosis.timeline_event import TimelineEvent
from lerobot_serve.tools.traces.fields import number, Record
from lerobot_serve.tools.traces.stalls import Stall

# what the cage says of a command that it did not let pass as it was
TRIP_VERDICTS = ('clamped', 'held', 'stopped')
# an answer that ends a stall comes a little before the first command that plays it
GRACE_S = 0.3


@dataclass(slots=True)
class CommandCounts:
    """What an edge commanded in a stretch: by verdict; `missed` steps between played ones."""

    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    missed: int = 0

    @property
    def count(self) -> int:
        return self.verdicts.total()

    @property
    def changed(self) -> int:
        return sum(self.verdicts[verdict] for verdict in TRIP_VERDICTS)


@dataclass(slots=True)
class PeerFacts:
    """
    What a router or a server tells of the stretch.

    clock_offset_s   how far its clock is ahead of the robot's by `pairs` requests that both tell of
    waits     client -> its queue waits [ms] before the trouble and during it
    statuses  of all clients' requests during the trouble: (client, status)
    seen      how many requests of anybody it tells of, before and during
    is_whole  nothing of its trace is lost or damaged
    first_s   client -> when it first asked
    begin_s, end_s  what its trace covers, by the clock of the robot; `is_ended`: it has its end
    """

    node: str
    role: str
    clock_offset_s: float = 0.0
    pairs: int = 0
    waits: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    seen: list[int] = field(default_factory=lambda: [0, 0])
    is_whole: bool = True
    slot_changes: list[str] = field(default_factory=list)
    first_s: dict[str, float] = field(default_factory=dict)
    begin_s: float | None = None
    end_s: float | None = None
    is_ended: bool = True


@dataclass(slots=True)
class WindowFacts:
    """
    begin_s, end_s  the window, by the clock of the robot
    has_edge        whether there is a trace of the robot's own edge; `is_edge_complete` all of it
    edge_span_s       first and last time of its edge in and around the window
    parameters      of the robot's edge, as they were in the window
    stalls          of the robot in the window; `earlier` those of the minute before it
    requests        those that ended in the window or the minute before
    calm, rough     commands before the trouble and in the window
    moves           words of each decision by which an episode of the robot was moved
    stalls_of_others   other robots whose edges tell of the window -> how often they stalled
    """

    client: str
    begin_s: float
    end_s: float
    has_edge: bool = False
    edge_span_s: tuple[float, float] = inf, -inf
    is_edge_complete: bool = True
    parameters: Record = field(default_factory=dict)
    stalls: list[Stall] = field(default_factory=list)
    earlier: list[Stall] = field(default_factory=list)
    requests: dict[JoinKey, JoinedRequest] = field(default_factory=dict)
    happenings: list[TimelineEvent] = field(default_factory=list)
    calm: CommandCounts = field(default_factory=CommandCounts)
    rough: CommandCounts = field(default_factory=CommandCounts)
    moves: list[str] = field(default_factory=list)
    connection: Counter[str] = field(default_factory=Counter)
    peers: list[PeerFacts] = field(default_factory=list)
    stalls_of_others: Counter[str] = field(default_factory=Counter)

    @property
    def trouble_s(self) -> tuple[float, float]:
        """From the first stall of the window to its last; the window where there is none."""
        if not self.stalls:
            return self.begin_s, self.end_s
        return self.stalls[0].begin_s, max(s.end_s for s in self.stalls) + GRACE_S

    @property
    def onset_s(self) -> float:
        """When the first request was sent that was in flight during the trouble."""
        return min([self.trouble_s[0], *(self.sent_s(request) for request in self.during)])

    def sent_s(self, request: JoinedRequest) -> float:
        """Return when it was sent; of one without an answer, when its time began."""
        flight_s = (request.round_trip_ms or 0.0) / 1e3
        if request.is_lost:
            flight_s = number(self.parameters, 'request_timeout_s') or 0.0
        return request.end_s - flight_s

    def is_during(self, request: JoinedRequest) -> bool:
        """Tell whether a request was in flight, or ended, while the robot stalled."""
        stretches = [(s.begin_s, s.end_s + GRACE_S) for s in self.stalls] or [self.trouble_s]
        return self._meets(request, stretches)

    def is_before(self, request: JoinedRequest) -> bool:
        """Tell whether a request was over before the trouble, and not part of an earlier one."""
        earlier = [(s.begin_s, s.end_s + GRACE_S) for s in self.earlier]
        return request.end_s < self.trouble_s[0] and not self._meets(request, earlier)

    def _meets(self, request: JoinedRequest, stretches: list[tuple[float, float]]) -> bool:
        sent_s = self.sent_s(request)
        return any(sent_s <= last and first <= request.end_s for first, last in stretches)

    @property
    def during(self) -> list[JoinedRequest]:
        return [request for request in self.requests.values() if self.is_during(request)]

    @property
    def before(self) -> list[JoinedRequest]:
        return [r for r in self.requests.values() if self.is_before(r) and not self.is_during(r)]

    def figure(self, value: Callable[[JoinedRequest], float | None]) -> MedianShift:
        """Return a value of the robot's requests before and during."""
        return median_shift(map(value, self.before), map(value, self.during))

    def of_role(self, role: str) -> Iterator[PeerFacts]:
        return (peer for peer in self.peers if peer.role == role)

    @property
    def missing(self) -> list[str]:
        """Words for each trace that is not there, and what it would tell."""
        there = {peer.role for peer in self.peers} | ({'edge'} if self.has_edge else set())
        return [words for role, words in MISSING_TRACE_TEXT.items() if role not in there]


MISSING_TRACE_TEXT = {
    'edge': 'no trace of its edge: set trace_folder of edge_controller',
    'router': 'no trace of a router that knows it: set trace_folder of policy_router',
    'server': 'no trace of a server that knows it: set trace_folder of policy_server',
}
