# SPDX-License-Identifier: Apache-2.0
"""The router as an Upstream: sessions of callers over one link. The event loop owns it."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.core import Log
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.router.calls import ended, RouterCalls
from lerobot_serve.gateway.router.outcomes import unavailable
from lerobot_serve.gateway.router.session import RouterSession
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.links.link import Presence
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.session.machine import SessionLost


class RouterUpstream:
    """See the module. Built in the event loop; `deposit_*` may be called in any thread."""

    def __init__(
        self,
        client: ServerClient,
        settings: GatewayParameters,
        log: Log,
        *,
        count_dropped: Callable[[str], None],
    ) -> None:
        self._server, self._count_dropped = client.server, count_dropped
        self._calls = RouterCalls(client, settings, log)
        self._availability = self._calls.availability
        self._sessions: dict[str, RouterSession] = {}

    def start(self) -> None:
        """Look for the router."""
        self._availability.start()

    @property
    def problem(self) -> str:
        """Why no session can be opened now; empty when one can. Any thread."""
        return self._availability.problem

    async def describe(self) -> PolicyContract:
        """Return what is served now. Raises PredictionError (UNAVAILABLE)."""
        return await self._availability.refresh()

    async def open(self, caller: Caller, terms: OpenSessionRequest | None = None) -> RouterSession:
        """Open the session of a caller. Raises PredictionError."""
        session = RouterSession(caller.client_id, self._calls, self._forget, terms)
        self._sessions[caller.client_id] = session
        try:
            await session.open()
        except BaseException:
            self._forget(session)
            raise
        return session

    async def close(self) -> None:
        """Close all sessions and end the threads, in 2 x CALLS_END_S. May be called twice."""
        await self._availability.close()
        await ended(*(session.close() for session in list(self._sessions.values())))
        await self._calls.close()

    def _forget(self, session: RouterSession) -> None:
        """Deliver nothing more to a session; a later one of its caller keeps its replies."""
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    # deposits of other threads

    def deposit_chunk(self, raw: bytes) -> None:
        self._calls.in_loop(self._on_chunk, raw, True)

    def deposit_no_session(self, raw: bytes) -> None:
        self._calls.in_loop(self._on_chunk, raw, False)

    def deposit_presence(self, presence: Presence) -> None:
        self._calls.in_loop(self._on_presence, presence)

    def _on_chunk(self, raw: bytes, is_own_topic: bool) -> None:
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed as error:
            self._count_dropped(error.reason)
            return
        session = self._sessions.get(chunk.client_id)
        if session:
            if not session.on_chunk(chunk):
                self._count_dropped('late_chunk')
        elif is_own_topic:
            self._count_dropped('other_client')

    def _on_presence(self, presence: Presence) -> None:
        if presence is Presence.THERE:
            if self.problem:
                self._availability.start()
            return
        if presence is not Presence.CLOSED:
            text = f'{self._server} is lost: it was killed, hangs or is cut off'
            self._availability.lost(text)
            self._end_sessions(lambda: unavailable(f'{text}; retry later'))
        elif any(session.is_open for session in self._sessions.values()):
            # it ends, or has restarted already
            self._availability.start()
            self._end_sessions(lambda: SessionLost('the router closed its replies'))

    def _end_sessions(self, make_error: Callable[[], Exception]) -> None:
        for session in list(self._sessions.values()):
            session.on_lost(make_error())
