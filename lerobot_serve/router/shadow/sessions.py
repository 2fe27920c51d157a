# SPDX-License-Identifier: Apache-2.0
"""
Sessions with the policy in shadow, and with replicas for second draws. The shadow thread.

Each robot has one with the shadow and, under another name, one with a replica; they are opened
when they are needed, and closed when the robot's own is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest

CALL_TIMEOUT_S = 1.0
# back-off after a refusal or a timeout
RETRY_NS = 5_000_000_000
SESSIONS_LIMIT = 4096
# the second draw of a robot's request comes from a session of its own
SECOND_DRAW_SUFFIX = '~again'


class ShadowClient(Protocol):
    """Of the shadow, or of a replica for second draws; as ros.shadow_clients has it."""

    def open(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def close(self, ask: SessionRequest, timeout_s: float) -> Any: ...

    def send(self, raw: bytes) -> None: ...


class ShadowSessions:
    """See the module. `warn` is for operators: the first trouble of a stretch."""

    def __init__(self, clock: Callable[[], int], warn: Callable[[str], None]) -> None:
        self._clock, self._warn = clock, warn
        # (robot, client) -> what is open there
        self._open: OrderedDict[tuple[str, ShadowClient], SessionRequest] = OrderedDict()
        # until when who refused is left alone; without a robot, all of them
        self._retry_ns: OrderedDict[tuple[str, ShadowClient], int] = OrderedDict()
        self._is_warned = False

    def knows(self, client: ShadowClient, ask: SessionRequest) -> bool:
        """Return whether the session is open there."""
        known = self._open.get((ask.client_id, client))
        return known is not None and known.session_epoch == ask.session_epoch

    def open(self, client: ShadowClient, ask: SessionRequest) -> bool:
        """Open a session unless its server is backed off; return whether it is open."""
        key, now_ns = (ask.client_id, client), self._clock()
        if now_ns < self._retry_ns.get(key, 0) or self._is_backing_off(client):
            return False
        try:
            client.open(ask, CALL_TIMEOUT_S)
        except SessionRefused as refused:
            self._retry_ns[key] = now_ns + RETRY_NS
            self._warn_once(f'shadow session of {ask.client_id!r} refused: {refused}')
            return False
        except ServerUnreachable as error:
            self._back_off(client)
            self._warn_once(f'shadow unreachable: {error}')
            return False
        self._is_warned = False
        self._retry_ns.pop(key, None)
        self._open[key] = ask
        for remembered in (self._open, self._retry_ns):
            while len(remembered) > SESSIONS_LIMIT:
                remembered.popitem(last=False)
        return True

    def close(self, ended: SessionRequest) -> None:
        """Close the sessions that were opened for a closed session."""
        names = ended.client_id, second_draw_client_id(ended.client_id)
        for name, client in [key for key in self._open if key[0] in names]:
            if self._open[name, client].session_epoch == ended.session_epoch:
                self._close(client, self._open.pop((name, client)))

    def forget(self, client_id: str) -> None:
        """Forget the sessions of a client_id at all servers."""
        for key in [key for key in self._open if key[0] == client_id]:
            del self._open[key]

    def _close(self, client: ShadowClient, ask: SessionRequest) -> None:
        """Close a session; an unreachable server closes it after its idle time."""
        if self._is_backing_off(client):
            return
        try:
            client.close(ask, CALL_TIMEOUT_S)
        except ServerUnreachable:
            self._back_off(client)

    def _is_backing_off(self, client: ShadowClient) -> bool:
        """Return whether it left a call unanswered lately: it is not called for each robot."""
        return self._clock() < self._retry_ns.get(('', client), 0)

    def _back_off(self, client: ShadowClient) -> None:
        self._retry_ns['', client] = self._clock() + RETRY_NS

    def _warn_once(self, text: str) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._warn(text)


def second_draw_client_id(client_id: str) -> str:
    """Return the name under which a robot's second draws are asked for."""
    return f'{client_id}{SECOND_DRAW_SUFFIX}'
