# SPDX-License-Identifier: Apache-2.0
"""
The servers of a robot: which one is current, whether its writer is alive, and whether it still
replies. The request thread; the thread `replies` reports liveliness and the executor the response
to a probe. Plain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.links.link import Presence


class ServerSelection:
    """
    The servers or routers in order of preference, with failover. Any thread may read `current` and
    `failures`.

    A failover tries the next server at once, so that it completes before the queue is empty. A
    growing backoff applies only after all servers have failed in turn. Its length is random, so
    that robots that lost the same server do not reconnect at the same time. Success is a usable
    reply: a server that opens sessions and never replies does not reset the backoff.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        first_backoff_s: float,
        max_backoff_s: float,
        random: Callable[[], float],
    ) -> None:
        """`random` gives numbers in [0, 1)."""
        self._names = names
        self._first_s, self._max_s, self._random = first_backoff_s, max_backoff_s, random
        self._backoff_s = first_backoff_s
        self._tried: set[str] = set()
        self.current = names[0]
        # the latest failure of each server without a later reply; replaced as a whole
        self.failures: dict[str, str] = {}

    @property
    def preferred(self) -> str:
        return self._names[0]

    @property
    def has_alternatives(self) -> bool:
        return len(self._names) > 1

    @property
    def untried(self) -> tuple[str, ...]:
        """The other servers that have not failed in this round, in order."""
        after = self._names.index(self.current) + 1
        in_turn = self._names[after:] + self._names[:after]
        excluded = {self.current, *self._tried}
        return tuple(name for name in in_turn if name not in excluded)

    @property
    def is_failing_over(self) -> bool:
        """Whether the current server is tried because another one failed."""
        return bool(self._tried)

    @property
    def failure_text(self) -> str:
        """The failures of all servers, in order of preference."""
        failures = self.failures
        return '; '.join(f'{name}: {failures[name]}' for name in self._names if name in failures)

    def mark_failed(self, reason: str) -> float:
        """
        Record a failure of the current server and select the next one. Return the wait before it
        is tried [s].
        """
        self.failures = {**self.failures, self.current: reason}
        self._tried.add(self.current)
        untried = self.untried
        if untried:
            self.current = untried[0]
            return 0.0
        self._tried.clear()
        self.current = self.preferred
        wait_s = self._backoff_s * self._random()
        self._backoff_s = min(2 * self._backoff_s, self._max_s)
        return wait_s

    def mark_succeeded(self) -> None:
        """Record a usable reply of the current server; resets the backoff."""
        self._tried.clear()
        self._backoff_s = self._first_s
        if self.current in self.failures:
            self.failures = {n: r for n, r in self.failures.items() if n != self.current}

    def return_to_better(self, is_available: Callable[[str], bool]) -> bool:
        """
        Select the first available server before the current one; return whether there is one,
        which requires a new session. Call at an episode boundary, where a change is harmless.
        """
        for name in self._names[: self._names.index(self.current)]:
            if name not in self._tried and is_available(name):
                self.current = name
                return True
        return False


class ServerLiveliness:
    """
    Whether the writer of the session's server to this robot is alive: each server replies on its
    own topic, so a lost writer is a lost server.

    Counts the losses of each server; no call blocks. Threads of the links call `update`.
    `on_change` wakes the request thread when a server was lost or came back.
    """

    def __init__(self, lease_s: float, on_change: Callable[[], None]) -> None:
        self._lease_s, self._on_change = lease_s, on_change
        self._presence: dict[str, Presence] = {}
        self._losses: Counter[str] = Counter()
        self._server, self._losses_before = '', 0

    def update(self, server: str, presence: Presence) -> None:
        """Record that a server is there, or how it was lost."""
        self._presence[server] = presence
        self._losses[server] += presence is not Presence.THERE
        self._on_change()

    def begin_session(self, server: str) -> None:
        """Start a session with this server; earlier losses do not count."""
        self._server, self._losses_before = server, self._losses[server]

    @property
    def has_lease_expired(self) -> bool:
        """Whether the lease of its last writer expired."""
        return self._presence.get(self._server) is Presence.EXPIRED

    def loss_reason(self) -> str:
        """Return why the server of the session is lost; empty if it is alive."""
        presence = self._presence.get(self._server, Presence.THERE)
        is_lost = self._losses[self._server] != self._losses_before
        if presence is Presence.THERE or not is_lost:
            return ''
        text: str = presence.value
        return text.format(lease_s=self._lease_s)


PROBE_SHARE, LEAVE_SHARE = 0.25, 0.5
# a shorter time would mistake a busy machine for a lost one
MIN_BUFFER_S = 0.2


class ReplyWatchdog:
    """
    Detects an unresponsive server before the request deadline; watches one request at a time.

    A liveliness lease or a request deadline may outlast the queue. So after a quarter of
    request_threshold_s without a reply the watchdog probes the server, which responds within
    milliseconds even if its policy is slow. Without a response by half of request_threshold_s the
    requester leaves the server; the other half is for the session with the next one. The watchdog
    is idle while no other server is available.
    """

    def __init__(self, transport: Transport, servers: ServerSelection) -> None:
        self._transport, self._servers = transport, servers
        self._probe_ns = self._leave_ns = 0
        self._is_probed = False
        # the latest request during which the server responded to a probe
        self._alive_during: PendingRequest | None = None

    def watch(self, pending: PendingRequest, request_threshold_s: float) -> None:
        """Watch a request that was sent with about this much in the queue."""
        buffer_ns = 1e9 * max(request_threshold_s, MIN_BUFFER_S)
        self._probe_ns = pending.sent_ns + int(PROBE_SHARE * buffer_ns)
        self._leave_ns = pending.sent_ns + int(LEAVE_SHARE * buffer_ns)
        self._is_probed = False

    def poll(self, pending: PendingRequest, now_ns: int) -> str:
        """Return why to leave the server; empty to keep it."""
        if not self._is_probed and now_ns >= self._probe_ns and self._can_leave():
            self._is_probed = True
            self._transport.probe(partial(self._on_sign_of_life, pending))
        is_silent = self._is_probed and self._alive_during is not pending
        if is_silent and now_ns >= self._leave_ns and self._can_leave():
            silent_s = (now_ns - pending.sent_ns) / 1e9
            return f'no reply for {silent_s:.2f} s and no response to a status call'
        return ''

    def next_poll_ns(self, now_ns: int, deadline_ns: int) -> int:
        """Return the time of the next poll, at most the deadline."""
        moments = (self._probe_ns, self._leave_ns, deadline_ns)
        return min(at_ns for at_ns in moments if at_ns > now_ns)

    def _can_leave(self) -> bool:
        """Return whether another server is available."""
        return any(self._transport.is_available(server) for server in self._servers.untried)

    def _on_sign_of_life(self, pending: PendingRequest) -> None:
        """Record the response to a probe. Executor thread."""
        self._alive_during = pending
