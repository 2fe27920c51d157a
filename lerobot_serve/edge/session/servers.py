# SPDX-License-Identifier: Apache-2.0
"""
Whether the server of a robot's session is lost: its writer is not alive, or it does not reply. The
request thread; the thread `replies` reports liveliness and the executor the response to a probe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from lerobot_serve.edge.session.request import PendingRequest
from lerobot_serve.edge.session.transport.transport import Transport
from lerobot_serve.links.link import Presence
from lerobot_serve.session.failover import ServerSelection


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
