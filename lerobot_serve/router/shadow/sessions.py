# SPDX-License-Identifier: Apache-2.0
"""
Sessions with the policy in shadow, and with replicas for second draws. The thread `shadow`.

Each robot has one session with the shadow and, under another client_id, one with a replica. They
are opened on demand and closed with the session of the robot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Protocol

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.router.replicas.replica import Replica
from lerobot_serve.router.sessions.client_sessions import ClientSession

CALL_TIMEOUT_S = 1.0
# back-off after a refusal or a timeout
RETRY_NS = 5_000_000_000
SESSIONS_LIMIT = 4096
# a replica with this load or more serves no second draws
MAX_LOAD = 0.7
# suffix of the client_id of second draws
SECOND_DRAW_SUFFIX = '~again'


class ShadowClient(Protocol):
    """The client of the shadow, or of a replica for second draws; see ros.shadow_links."""

    def open(self, session_request: OpenSessionRequest, timeout_s: float) -> object: ...

    def close(self, session_request: OpenSessionRequest, timeout_s: float) -> object: ...

    def send(self, raw: Raw) -> None: ...


class ShadowSessions:
    """See the module. `warn` logs the first failure since the last success."""

    def __init__(self, clock: Callable[[], int], warn: Callable[[str], None]) -> None:
        self._clock, self._warn = clock, warn
        # (client_id, client) -> open session
        self._open: OrderedDict[tuple[str, ShadowClient], OpenSessionRequest] = OrderedDict()
        # (client_id, client) -> time of the next attempt; client_id '' for all robots
        self._retry_ns: OrderedDict[tuple[str, ShadowClient], int] = OrderedDict()
        self._is_warned = False

    def knows(self, client: ShadowClient, session_request: OpenSessionRequest) -> bool:
        """Return whether a session is open at a client's server."""
        known = self._open.get((session_request.client_id, client))
        return known is not None and known.session_epoch == session_request.session_epoch

    def open(self, client: ShadowClient, session_request: OpenSessionRequest) -> bool:
        """Open a session that is not, unless a back-off is active; return whether it is open."""
        if self.knows(client, session_request):
            return True
        key, now_ns = (session_request.client_id, client), self._clock()
        if now_ns < self._retry_ns.get(key, 0) or self._is_backing_off(client):
            return False
        try:
            client.open(session_request, CALL_TIMEOUT_S)
        except SessionRefused as refused:
            self._retry_ns[key] = now_ns + RETRY_NS
            self._warn_once(f'shadow session of {session_request.client_id!r} refused: {refused}')
            return False
        except ServerUnreachable as error:
            self._back_off(client)
            self._warn_once(f'shadow unreachable: {error}')
            return False
        self._is_warned = False
        self._retry_ns.pop(key, None)
        self._open[key] = session_request
        for remembered in (self._open, self._retry_ns):
            while len(remembered) > SESSIONS_LIMIT:
                remembered.popitem(last=False)
        return True

    def close(self, ended: OpenSessionRequest) -> None:
        """Close the sessions that were opened for a closed session."""
        names = ended.client_id, second_draw_client_id(ended.client_id)
        for name, client in [key for key in self._open if key[0] in names]:
            if self._open[name, client].session_epoch == ended.session_epoch:
                self._close(client, self._open.pop((name, client)))

    def forget(self, client_id: str) -> None:
        """Remove the sessions of a client_id, which a server has lost."""
        for key in [key for key in self._open if key[0] == client_id]:
            del self._open[key]

    def _close(self, client: ShadowClient, session_request: OpenSessionRequest) -> None:
        """Close a session; an unreachable server closes it after its idle time."""
        if self._is_backing_off(client):
            return
        try:
            client.close(session_request, CALL_TIMEOUT_S)
        except ServerUnreachable:
            self._back_off(client)

    def _is_backing_off(self, client: ShadowClient) -> bool:
        """Return whether a recent call timed out; the server is not called for any robot then."""
        return self._clock() < self._retry_ns.get(('', client), 0)

    def _back_off(self, client: ShadowClient) -> None:
        self._retry_ns['', client] = self._clock() + RETRY_NS

    def _warn_once(self, text: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._warn(text)


def second_draw_client_id(client_id: str) -> str:
    """Return the client_id of the second draws of a robot."""
    return f'{client_id}{SECOND_DRAW_SUFFIX}'


class SecondDraws:
    """Selects a client among `clients`, one per replica; reads replicas without the lock."""

    def __init__(
        self, replicas: Mapping[str, Replica], clients: Mapping[str, ShadowClient]
    ) -> None:
        self._replicas, self._clients = replicas, clients

    def client_for(self, session: ClientSession) -> ShadowClient | None:
        """Return the client of the session's last replica; None if that is busy or not ready."""
        places = session.places.get(session.slot, ())
        if not places:
            return None
        replica = self._replicas[places[-1]]
        is_idle = replica.is_ready and replica.placement_load < MAX_LOAD
        return self._clients[replica.name] if is_idle else None
