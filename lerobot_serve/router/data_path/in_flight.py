"""
What is under way: the newest request of each robot, who was asked, and what is due when.

A dictionary entry a robot, and one for each replica that owes it an answer; nothing grows with
the number of requests. What is due lies in a heap, in which what was answered meanwhile is passed
over, and cleared away when it becomes the larger part. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import auto, Enum
import heapq

from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.header import Header

# below this, clearing away would be work without use
MIN_HEAP_TO_COMPACT = 64


class RequestPurpose(Enum):
    """Why a replica was asked."""

    LIVE = auto()
    # a second try, while the first may still answer
    HEDGE = auto()
    # to see whether it is well again; the answer goes to no robot
    TRIAL = auto()


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """The newest request of a robot; `raw` is let go when it is answered."""

    robot: ClientSession
    header: Header
    episode_id: str
    raw: bytes
    began_ns: int
    slot: str = ''
    tried: set[str] = field(default_factory=set)
    # replicas at which the policy failed; whether they are to blame shows at the others
    failed_servers: list[str] = field(default_factory=list)
    done: bool = False
    # the episode was placed, or moved, with this request
    is_new: bool = False

    @property
    def seq(self) -> int:
        return self.header.seq

    def end(self) -> None:
        """No answer is wanted any more."""
        self.done, self.raw = True, b''


@dataclass(slots=True, eq=False)
class PendingReply:
    """
    A replica owes a robot an answer; `since_ns` is when the oldest such request was sent, and
    `due_ns` when the time of the answer is over.
    """

    server: str
    flight: InFlightRequest
    purpose: RequestPurpose
    sent_ns: int
    since_ns: int
    due_ns: int

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.flight.robot.ask.client_id


class InFlightRequests:
    """See the module."""

    def __init__(self) -> None:
        self._newest: dict[str, InFlightRequest] = {}
        self._asked: dict[tuple[str, str], PendingReply] = {}
        self._due: list[tuple[int, int, PendingReply, bool]] = []
        self._count = 0

    def __len__(self) -> int:
        return sum(not flight.done for flight in self._newest.values())

    @property
    def size(self) -> int:
        """How much is kept, for reports and tests."""
        return len(self._newest) + len(self._asked) + len(self._due)

    def begin(self, flight: InFlightRequest) -> InFlightRequest | None:
        """Make it its robot's newest; return the one before if it was still waited for."""
        client_id = flight.robot.ask.client_id
        old = self._newest.get(client_id)
        self._newest[client_id] = flight
        return _ended(old)

    def newest(self, client_id: str) -> InFlightRequest | None:
        return self._newest.get(client_id)

    def ask(
        self,
        flight: InFlightRequest,
        server: str,
        purpose: RequestPurpose,
        now_ns: int,
        timeout_ns: int,
    ) -> PendingReply:
        """Note that a replica is asked. What it owed this robot before is owed no more."""
        old = self._asked.get((server, flight.robot.ask.client_id))
        since_ns = old.since_ns if old else now_ns
        asked = PendingReply(server, flight, purpose, now_ns, since_ns, since_ns + timeout_ns)
        self._asked[asked.key] = asked
        flight.tried.add(server)
        self._push(asked.due_ns, asked, overdue=True)
        return asked

    def schedule_hedge(self, asked: PendingReply, due_ns: int) -> None:
        """Have `due` return it then, too, unless it is answered by then."""
        self._push(due_ns, asked, overdue=False)

    def answered(
        self, server: str, client_id: str, session_epoch: int, seq: int
    ) -> PendingReply | None:
        """Return who was asked for this answer, and forget that; None when nobody was."""
        key = server, client_id
        asked = self._asked.get(key)
        if asked is None or asked.flight.robot.ask.session_epoch != session_epoch:
            return None
        if asked.flight.seq != seq:
            # busy with an earlier one until now: the time of this one begins when it was sent
            asked.due_ns += asked.sent_ns - asked.since_ns
            asked.since_ns = asked.sent_ns
            return None
        return self._asked.pop(key)

    def pending_at(self, server: str) -> list[PendingReply]:
        """Return what a replica still owes."""
        return [asked for (name, _), asked in self._asked.items() if name == server]

    def asked_of(self, flight: InFlightRequest) -> list[str]:
        """Return which replicas may still answer it."""
        client_id = flight.robot.ask.client_id
        found = ((name, self._asked.get((name, client_id))) for name in flight.tried)
        return [
            name
            for name, asked in found
            if asked and asked.flight is flight and asked.purpose is not RequestPurpose.TRIAL
        ]

    def count_by_slot(self) -> Counter[str]:
        """Return how many requests wait for an answer in each slot."""
        return Counter(flight.slot for flight in self._newest.values() if not flight.done)

    def forget(self, client_id: str) -> InFlightRequest | None:
        """A session is over; return the request whose answer was waited for."""
        self._drop_pending(client_id, lambda flight: True)
        return _ended(self._newest.pop(client_id, None))

    def forget_episodes_before(self, client_id: str, episode: int) -> InFlightRequest | None:
        """
        A robot has begun an episode, and servers drop what waits of the one before; return the
        request whose answer was waited for.
        """
        self._drop_pending(client_id, lambda flight: flight.header.episode < episode)
        newest = self._newest.get(client_id)
        is_over = newest is not None and newest.header.episode < episode
        return _ended(newest) if is_over else None

    def _drop_pending(self, client_id: str, is_over: Callable[[InFlightRequest], bool]) -> None:
        """No replica owes this robot an answer to the requests that are over."""
        keys = [key for key in self._asked if key[1] == client_id]
        for key in keys:
            if is_over(self._asked[key].flight):
                del self._asked[key]

    @property
    def next_due_ns(self) -> int | None:
        """When `due` has something next."""
        self._pop_settled()
        return self._due[0][0] if self._due else None

    def due(self, now_ns: int) -> Iterator[tuple[PendingReply, bool]]:
        """Return what is due; True with it when its time is over, False for a second try."""
        while True:
            self._pop_settled()
            if not self._due or self._due[0][0] > now_ns:
                return
            due_ns, _, asked, overdue = heapq.heappop(self._due)
            if overdue and due_ns < asked.due_ns:
                self._push(asked.due_ns, asked, overdue=True)
                continue
            if overdue:
                del self._asked[asked.key]
            yield asked, overdue

    def _push(self, due_ns: int, asked: PendingReply, *, overdue: bool) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_ns, self._count, asked, overdue))
        # each has two entries at most
        if len(self._due) > MIN_HEAP_TO_COMPACT + 4 * len(self._asked):
            self._due = [entry for entry in self._due if self._is_pending(entry[2])]
            heapq.heapify(self._due)

    def _is_pending(self, asked: PendingReply) -> bool:
        return self._asked.get(asked.key) is asked

    def _pop_settled(self) -> None:
        while self._due and not self._is_pending(self._due[0][2]):
            heapq.heappop(self._due)


def _ended(flight: InFlightRequest | None) -> InFlightRequest | None:
    """End a flight and return it; None where it was not wanted any more."""
    if flight is None or flight.done:
        return None
    flight.end()
    return flight
