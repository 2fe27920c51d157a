# SPDX-License-Identifier: Apache-2.0
"""
Track requests in flight: the newest of each client, its pending replies and their due times.

One entry a client and one for each replica with a pending reply; memory does not grow with the
number of requests. Due times are kept in a heap that skips settled entries and is compacted when
they are the larger part. No ROS; called under the dispatcher's lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import auto, Enum
import heapq

from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.wire.header import Header

# smaller heaps are not compacted
MIN_HEAP_TO_COMPACT = 64


class RequestPurpose(Enum):
    """Why a request was sent to a replica."""

    LIVE = auto()
    # a second copy, while the first reply may still arrive
    HEDGE = auto()
    # a probe of an unhealthy replica; its reply is discarded
    TRIAL = auto()


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """The newest request of a client; `raw` is released when it ends."""

    robot: ClientSession
    header: Header
    episode_id: str
    raw: bytes
    began_ns: int
    slot: str = ''
    tried: set[str] = field(default_factory=set)
    # replicas at which the policy failed; another replica's success puts it on them
    failed_servers: list[str] = field(default_factory=list)
    done: bool = False
    # the episode was placed, or moved, with this request
    is_new: bool = False

    @property
    def seq(self) -> int:
        return self.header.seq

    def end(self) -> None:
        """End the request: no reply is expected any more."""
        self.done, self.raw = True, b''


@dataclass(slots=True, eq=False)
class PendingReply:
    """
    A reply that a replica has not sent yet; `since_ns` is when the oldest such request was sent,
    `due_ns` is the time limit.
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
    """The newest request of each client and all pending replies; see the module."""

    def __init__(self) -> None:
        self._newest: dict[str, InFlightRequest] = {}
        self._pending: dict[tuple[str, str], PendingReply] = {}
        self._due: list[tuple[int, int, PendingReply, bool]] = []
        self._count = 0

    def __len__(self) -> int:
        return sum(not flight.done for flight in self._newest.values())

    @property
    def size(self) -> int:
        """Number of entries held, for reports and tests."""
        return len(self._newest) + len(self._pending) + len(self._due)

    def begin(self, flight: InFlightRequest) -> InFlightRequest | None:
        """Make it the newest of its client; return the previous one if it was in flight."""
        client_id = flight.robot.ask.client_id
        old = self._newest.get(client_id)
        self._newest[client_id] = flight
        return _ended(old)

    def newest(self, client_id: str) -> InFlightRequest | None:
        return self._newest.get(client_id)

    def add_pending(
        self,
        flight: InFlightRequest,
        server: str,
        purpose: RequestPurpose,
        now_ns: int,
        timeout_ns: int,
    ) -> PendingReply:
        """Add a pending reply; it replaces the previous one of this replica and client."""
        old = self._pending.get((server, flight.robot.ask.client_id))
        since_ns = old.since_ns if old else now_ns
        asked = PendingReply(server, flight, purpose, now_ns, since_ns, since_ns + timeout_ns)
        self._pending[asked.key] = asked
        flight.tried.add(server)
        self._push(asked.due_ns, asked, overdue=True)
        return asked

    def schedule_hedge(self, asked: PendingReply, due_ns: int) -> None:
        """Make `due` return it at `due_ns` too, unless it is settled by then."""
        self._push(due_ns, asked, overdue=False)

    def take_pending(
        self, server: str, client_id: str, session_epoch: int, seq: int
    ) -> PendingReply | None:
        """Remove and return the pending reply that this one settles; None when there is none."""
        key = server, client_id
        asked = self._pending.get(key)
        if asked is None or asked.flight.robot.ask.session_epoch != session_epoch:
            return None
        if asked.flight.seq != seq:
            # a reply to an earlier request: the time limit of this one counts from its sending
            asked.due_ns += asked.sent_ns - asked.since_ns
            asked.since_ns = asked.sent_ns
            return None
        return self._pending.pop(key)

    def pending_at(self, server: str) -> list[PendingReply]:
        """Return the pending replies of a replica."""
        return [asked for (name, _), asked in self._pending.items() if name == server]

    def pending_servers(self, flight: InFlightRequest) -> list[str]:
        """Return the replicas that may still reply to it."""
        client_id = flight.robot.ask.client_id
        found = ((name, self._pending.get((name, client_id))) for name in flight.tried)
        return [
            name
            for name, asked in found
            if asked and asked.flight is flight and asked.purpose is not RequestPurpose.TRIAL
        ]

    def count_by_slot(self) -> Counter[str]:
        """Return the number of requests in flight in each slot."""
        return Counter(flight.slot for flight in self._newest.values() if not flight.done)

    def forget(self, client_id: str) -> InFlightRequest | None:
        """Forget a closed session; return its request if one was in flight."""
        self._drop_pending(client_id, lambda flight: True)
        return _ended(self._newest.pop(client_id, None))

    def forget_episodes_before(self, client_id: str, episode: int) -> InFlightRequest | None:
        """
        Forget the requests of earlier episodes, which servers drop; return the request that was
        in flight.
        """
        self._drop_pending(client_id, lambda flight: flight.header.episode < episode)
        newest = self._newest.get(client_id)
        is_over = newest is not None and newest.header.episode < episode
        return _ended(newest) if is_over else None

    def _drop_pending(self, client_id: str, is_over: Callable[[InFlightRequest], bool]) -> None:
        """Drop the pending replies to requests that are over."""
        keys = [key for key in self._pending if key[1] == client_id]
        for key in keys:
            if is_over(self._pending[key].flight):
                del self._pending[key]

    @property
    def next_due_ns(self) -> int | None:
        """The next time at which `due` returns an entry."""
        self._pop_settled()
        return self._due[0][0] if self._due else None

    def due(self, now_ns: int) -> Iterator[tuple[PendingReply, bool]]:
        """Return what is due, with True for a time limit and False for a hedge."""
        while True:
            self._pop_settled()
            if not self._due or self._due[0][0] > now_ns:
                return
            due_ns, _, asked, overdue = heapq.heappop(self._due)
            if overdue and due_ns < asked.due_ns:
                self._push(asked.due_ns, asked, overdue=True)
                continue
            if overdue:
                del self._pending[asked.key]
            yield asked, overdue

    def _push(self, due_ns: int, asked: PendingReply, *, overdue: bool) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_ns, self._count, asked, overdue))
        # each has two entries at most
        if len(self._due) > MIN_HEAP_TO_COMPACT + 4 * len(self._pending):
            self._due = [entry for entry in self._due if self._is_pending(entry[2])]
            heapq.heapify(self._due)

    def _is_pending(self, asked: PendingReply) -> bool:
        return self._pending.get(asked.key) is asked

    def _pop_settled(self) -> None:
        while self._due and not self._is_pending(self._due[0][2]):
            heapq.heappop(self._due)


def _ended(flight: InFlightRequest | None) -> InFlightRequest | None:
    """End a request and return it; None where it had ended already."""
    if flight is None or flight.done:
        return None
    flight.end()
    return flight
