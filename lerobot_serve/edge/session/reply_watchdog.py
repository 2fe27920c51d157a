"""
Whether an unanswered request is reason to go to another server. The request thread.

To wait until a liveliness lease or a request's time runs out would cost what is buffered. So a
server that has not answered after a quarter of buffer_time_s is asked for a sign of life, which it
gives within milliseconds however long its policy needs. One that has not given it after half of
buffer_time_s is left; the other half is for the session with the next one. Nothing of this happens
while no other server is there: then there is nothing to gain.
"""

from __future__ import annotations

from functools import partial

from lerobot_serve.edge.session.servers import ServerSelection
from lerobot_serve.edge.session.tracker import PendingRequest
from lerobot_serve.edge.session.transport import Transport

PROBE_SHARE, LEAVE_SHARE = 0.25, 0.5
# below, a busy machine would look like a dead one
MIN_BUFFER_S = 0.2


class ReplyWatchdog:
    """Over one request after the other."""

    def __init__(self, link: Transport, servers: ServerSelection) -> None:
        self._link, self._servers = link, servers
        self._probe_ns = self._leave_ns = 0
        self._is_probed = False
        # the latest request during which the server gave a sign of life
        self._alive_during: PendingRequest | None = None

    def begin(self, pending: PendingRequest, buffer_time_s: float) -> None:
        """Watch over this request, sent with about so much to play."""
        buffer_ns = 1e9 * max(buffer_time_s, MIN_BUFFER_S)
        self._probe_ns = pending.sent_ns + int(PROBE_SHARE * buffer_ns)
        self._leave_ns = pending.sent_ns + int(LEAVE_SHARE * buffer_ns)
        self._is_probed = False

    def look(self, pending: PendingRequest, now_ns: int) -> str:
        """Return why its server is to be left; empty while it is not."""
        if not self._is_probed and now_ns >= self._probe_ns and self._can_leave():
            self._is_probed = True
            self._link.probe(partial(self._on_sign_of_life, pending))
        is_silent = self._is_probed and self._alive_during is not pending
        if is_silent and now_ns >= self._leave_ns and self._can_leave():
            return f'silent for {(now_ns - pending.sent_ns) / 1e9:.2f} s, to a status call, too'
        return ''

    def next_ns(self, now_ns: int, deadline_ns: int) -> int:
        """Return when to look again, the deadline at the latest."""
        moments = (self._probe_ns, self._leave_ns, deadline_ns)
        return min(at_ns for at_ns in moments if at_ns > now_ns)

    def _can_leave(self) -> bool:
        """Return whether another server is there."""
        return any(self._link.is_there(server) for server in self._servers.untried)

    def _on_sign_of_life(self, pending: PendingRequest) -> None:
        """Executor thread."""
        self._alive_during = pending
