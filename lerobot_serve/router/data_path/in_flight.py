# SPDX-License-Identifier: Apache-2.0
"""
Track requests in flight: the newest of each client, its pending replies and their due times.

Memory is bounded: one entry per client, and one per client and replica with a pending reply. A
heap holds the due times; settled entries are skipped, and removed when they are the majority. No
ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import auto, Enum
import heapq

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.router.sessions.client_sessions import ClientSession
from lerobot_serve.trace.format.records import RecordIds

# smaller heaps are not compacted
MIN_HEAP_TO_COMPACT = 64


class RequestPurpose(Enum):
    """Why a request was sent to a replica."""

    LIVE = auto()
    # a second copy while the first reply is pending
    HEDGE = auto()
    # a probe of an unhealthy replica; its reply is discarded
    PROBE = auto()


@dataclass(slots=True, eq=False)
class InFlightRequest:
    """The newest request of a client; `raw` is released when it ends."""

    session: ClientSession
    header: Header
    episode_id: str
    raw: Raw
    started_ns: int
    slot: str = ''
    # when it came to its slot
    slot_since_ns: int = 0
    tried_servers: set[str] = field(default_factory=set)
    # replicas with a policy error; it counts for their health if another replica succeeds
    failed_servers: list[str] = field(default_factory=list)
    is_done: bool = False
    # the episode was placed, or moved, with this request
    is_new: bool = False

    @property
    def seq(self) -> int:
        return self.header.seq

    @property
    def ids(self) -> RecordIds:
        """The identifiers of the request in records."""
        session_request = self.session.request
        return RecordIds(
            session_request.client_id, session_request.session_epoch, self.seq, self.episode_id
        )

    def end(self) -> None:
        """Mark the request as done and release its bytes."""
        self.is_done, self.raw = True, b''


@dataclass(slots=True, eq=False)
class PendingReply:
    """
    A reply that a replica has not sent yet. `since_ns` is the sending time of the oldest request
    of the client without a reply of this replica, `due_ns` the time limit. `slot` is that of the
    request when it was sent.
    """

    server: str
    request: InFlightRequest
    purpose: RequestPurpose
    slot: str
    sent_ns: int
    since_ns: int
    due_ns: int

    @property
    def key(self) -> tuple[str, str]:
        return self.server, self.request.session.request.client_id

    @property
    def has_left_slot(self) -> bool:
        """Whether the request has moved to another slot since it was sent."""
        return self.slot != self.request.slot


class InFlightRequests:
    """The newest request of each client and all pending replies; see the module."""

    def __init__(self) -> None:
        self._newest: dict[str, InFlightRequest] = {}
        self._pending: dict[tuple[str, str], PendingReply] = {}
        self._due: list[tuple[int, int, PendingReply, bool]] = []
        self._count = 0

    def __len__(self) -> int:
        return sum(not request.is_done for request in self._newest.values())

    @property
    def size(self) -> int:
        """Number of entries held, for reports and tests."""
        return len(self._newest) + len(self._pending) + len(self._due)

    def begin(self, request: InFlightRequest) -> InFlightRequest | None:
        """Make the request the newest of its client; return the previous one if in flight."""
        client_id = request.session.request.client_id
        old = self._newest.get(client_id)
        self._newest[client_id] = request
        return _ended(old)

    def newest(self, client_id: str) -> InFlightRequest | None:
        return self._newest.get(client_id)

    def add_pending(
        self,
        request: InFlightRequest,
        server: str,
        purpose: RequestPurpose,
        now_ns: int,
        timeout_ns: int,
    ) -> PendingReply:
        """Add a pending reply; it replaces the previous one of this replica and client."""
        old = self._pending.get((server, request.session.request.client_id))
        since_ns = old.since_ns if old else now_ns
        pending = PendingReply(
            server,
            request,
            purpose,
            request.slot,
            sent_ns=now_ns,
            since_ns=since_ns,
            due_ns=since_ns + timeout_ns,
        )
        self._pending[pending.key] = pending
        request.tried_servers.add(server)
        self._push(pending.due_ns, pending, overdue=True)
        return pending

    def schedule_hedge(self, pending: PendingReply, due_ns: int) -> None:
        """Make `due` also yield the pending reply at `due_ns`, unless it is settled by then."""
        self._push(due_ns, pending, overdue=False)

    def take_pending(
        self, server: str, client_id: str, session_epoch: int, seq: int
    ) -> PendingReply | None:
        """Remove and return the pending reply to this request; None without one."""
        key = server, client_id
        pending = self._pending.get(key)
        if pending is None or pending.request.session.request.session_epoch != session_epoch:
            return None
        if pending.request.seq != seq:
            # a reply to an earlier request: the time limit now counts from the newest request
            pending.due_ns += pending.sent_ns - pending.since_ns
            pending.since_ns = pending.sent_ns
            return None
        return self._pending.pop(key)

    def pending_at(self, server: str) -> list[PendingReply]:
        """Return the pending replies of a replica."""
        return [pending for (name, _), pending in self._pending.items() if name == server]

    def pending_servers(self, request: InFlightRequest) -> list[str]:
        """Return the replicas of its slot that may still reply to a request."""
        client_id = request.session.request.client_id
        found = ((name, self._pending.get((name, client_id))) for name in request.tried_servers)
        return [
            name
            for name, pending in found
            if pending
            and pending.request is request
            and pending.purpose is not RequestPurpose.PROBE
            and not pending.has_left_slot
        ]

    def count_by_slot(self) -> Counter[str]:
        """Return the number of requests in flight in each slot."""
        return Counter(request.slot for request in self._newest.values() if not request.is_done)

    def forget(self, client_id: str) -> InFlightRequest | None:
        """Remove all entries of a closed session; return its request in flight, if any."""
        self._drop_pending(client_id, lambda request: True)
        return _ended(self._newest.pop(client_id, None))

    def forget_episodes_before(self, client_id: str, episode: int) -> InFlightRequest | None:
        """
        Remove the pending replies of earlier episodes, whose requests servers drop; return the
        request in flight, if any.
        """
        self._drop_pending(client_id, lambda request: request.header.episode < episode)
        newest = self._newest.get(client_id)
        is_over = newest is not None and newest.header.episode < episode
        return _ended(newest) if is_over else None

    def _drop_pending(self, client_id: str, is_over: Callable[[InFlightRequest], bool]) -> None:
        """Drop the pending replies to requests for which `is_over` is true."""
        keys = [key for key in self._pending if key[1] == client_id]
        for key in keys:
            if is_over(self._pending[key].request):
                del self._pending[key]

    @property
    def next_due_ns(self) -> int | None:
        """The next time at which `due` yields an entry; None without one."""
        self._pop_settled()
        return self._due[0][0] if self._due else None

    def due(self, now_ns: int) -> Iterator[tuple[PendingReply, bool]]:
        """Yield due pending replies, with True for the time limit and False for a hedge."""
        while True:
            self._pop_settled()
            if not self._due or self._due[0][0] > now_ns:
                return
            due_ns, _, pending, overdue = heapq.heappop(self._due)
            if overdue and due_ns < pending.due_ns:
                self._push(pending.due_ns, pending, overdue=True)
                continue
            if overdue:
                del self._pending[pending.key]
            yield pending, overdue

    def _push(self, due_ns: int, pending: PendingReply, *, overdue: bool) -> None:
        self._count += 1
        heapq.heappush(self._due, (due_ns, self._count, pending, overdue))
        # each pending reply has at most two entries
        if len(self._due) > MIN_HEAP_TO_COMPACT + 4 * len(self._pending):
            self._due = [entry for entry in self._due if self._is_pending(entry[2])]
            heapq.heapify(self._due)

    def _is_pending(self, pending: PendingReply) -> bool:
        return self._pending.get(pending.key) is pending

    def _pop_settled(self) -> None:
        while self._due and not self._is_pending(self._due[0][2]):
            heapq.heappop(self._due)


def _ended(request: InFlightRequest | None) -> InFlightRequest | None:
    """End a request and return it; None if it had ended already."""
    if request is None or request.is_done:
        return None
    request.end()
    return request
