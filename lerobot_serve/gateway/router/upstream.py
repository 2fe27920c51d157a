# SPDX-License-Identifier: Apache-2.0
"""The router as an Upstream: sessions of callers over one link. The event loop owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
from functools import partial
import hashlib
import secrets
from typing import Any, TypeVar

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import (
    CameraSpec,
    GetStatusResponse,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.services.session import (
    ServerUnreachable,
    SessionRefused,
    SessionRequest,
)
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Log
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.router.availability import Availability
from lerobot_serve.gateway.router.image_encoding import ImageEncoder
from lerobot_serve.gateway.router.outcomes import refusal_error, unavailable
from lerobot_serve.gateway.router.policy_contract import contract_of_session, request_on_terms
from lerobot_serve.gateway.router.server_link import (
    Presence,
    ServerLink,
)
from lerobot_serve.gateway.router.session import RouterSession
from lerobot_serve.gateway.upstream import PolicyContract, SessionTerms
from lerobot_serve.session.machine import SessionLost

T = TypeVar('T')
# calls that block, such as sessions that are opened at once
CALL_THREADS = 8
STATUS_TIMEOUT_S, OPEN_TIMEOUT_S, MATCH_TIMEOUT_S, CLOSE_TIMEOUT_S = 1.0, 5.0, 3.0, 1.0
# at the end, for the calls that a router does not answer
CALLS_END_S = 1.0
# of a policy that does not say its rate
DEFAULT_HZ = 30.0


class RouterUpstream:
    """See the module. Built in the event loop; `deposit_*` may be called in any thread."""

    def __init__(
        self,
        link: ServerLink,
        settings: GatewayParameters,
        log: Log,
        *,
        count_dropped: Callable[[str], None],
    ) -> None:
        self._link, self._settings, self._log = link, settings, log
        self.count_dropped = count_dropped
        self._loop = asyncio.get_running_loop()
        self._calls = ThreadPoolExecutor(CALL_THREADS, 'upstream')
        self._running: set[Future[Any]] = set()
        self.images = ImageEncoder(settings)
        self._sessions: dict[str, RouterSession] = {}
        # of this process; each caller derives its own instance from it
        self._secret = secrets.token_bytes(16)
        self._availability = Availability(link.server, self._read_status, log.warning)

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

    async def open(self, caller: Caller, terms: SessionTerms | None = None) -> RouterSession:
        """Open the session of a caller. Raises PredictionError."""
        session = RouterSession(caller.client_id, self, terms)
        self._sessions[caller.client_id] = session
        try:
            await session.open()
        except BaseException:
            self.forget(session)
            raise
        return session

    async def close(self) -> None:
        """Close all sessions and end the threads, in 2 x CALLS_END_S. May be called twice."""
        await self._availability.close()
        sessions = list(self._sessions.values())
        await _within(CALLS_END_S, *(session.close() for session in sessions))
        self.images.close()
        self._calls.shutdown(wait=False, cancel_futures=True)
        await self._calls_ended()

    async def _calls_ended(self) -> None:
        """Await the calls that block: the link is closed next, and they use it."""
        await _within(CALLS_END_S, *map(asyncio.wrap_future, tuple(self._running)))

    # for the sessions

    def reply_topic(self, session_epoch: int) -> str:
        """Return where the router replies in one session."""
        return self._link.reply_topic(session_epoch)

    async def terms_of(self, client_id: str, terms: SessionTerms | None) -> SessionRequest:
        """Return the terms of a session at the router. Raises PredictionError."""
        contract = await self._availability.require()
        digest = hashlib.blake2s(client_id.encode(), digest_size=8, key=self._secret).digest()
        request = SessionRequest(
            client_id=client_id,
            # each caller is a client of its own; the same in each of its sessions
            instance=int.from_bytes(digest, 'big') >> 1,
            session_epoch=0,
            reply_topic='',
            state_names=contract.state_names,
            action_names=contract.action_names,
            cameras=tuple(
                CameraSpec(name, 0, 0, channels)
                for name, (_, _, channels) in contract.cameras.items()
            ),
            fps=contract.control_hz or DEFAULT_HZ,
            robot_type='gateway',
            policy=self._settings.required_policy,
            codec=self.images.codec,
            reply_deadline_s=self._settings.request_timeout_s,
        )
        return request_on_terms(request, terms) if terms else request

    async def open_session(
        self, request: SessionRequest
    ) -> tuple[OpenSessionResponse, PolicyContract]:
        """Open a session. Raises PredictionError."""
        try:
            reply = await self._call(self._link.open, request, OPEN_TIMEOUT_S)
            await self._call(self._link.wait_until_matched, MATCH_TIMEOUT_S)
        except ServerUnreachable as error:
            self._availability.lost(str(error))
            raise unavailable(f'{error}; retry later') from None
        except SessionRefused as refused:
            # its names may have changed since they were read
            self._availability.start()
            raise refusal_error(refused) from None
        self._availability.responded()
        try:
            return reply, contract_of_session(reply)
        except PredictionError:
            # the router has opened it, and holds a place for it
            await self.close_session(request)
            raise

    async def close_session(self, request: SessionRequest) -> None:
        """Close a session; a router that is away closes it by its own timeout."""
        if not self.problem:
            with contextlib.suppress(ServerUnreachable):
                await self._call(self._link.close_session, request, CLOSE_TIMEOUT_S)

    def send(self, raw: bytes) -> None:
        """Send a request. Raises PredictionError while the router is away."""
        if self.problem:
            raise unavailable(f'{self.problem}; retry later')
        self._link.send(raw)

    def announce(self, episode: ResetEpisodeRequest) -> None:
        """Announce an episode; its first request says so too."""
        self._link.announce(
            episode, partial(self._deposit, self._log_refused_reset, episode.client_id)
        )

    def _log_refused_reset(self, client_id: str, text: str) -> None:
        self._log.info(f'{client_id}: the router rejected the reset of its episode: {text}')

    def forget(self, session: RouterSession) -> None:
        """Deliver nothing more to a session; a later one of its caller keeps its replies."""
        if self._sessions.get(session.client_id) is session:
            del self._sessions[session.client_id]

    # deposits of other threads

    def deposit_chunk(self, raw: bytes) -> None:
        self._deposit(self._on_chunk, raw, True)

    def deposit_no_session(self, raw: bytes) -> None:
        self._deposit(self._on_chunk, raw, False)

    def deposit_presence(self, presence: Presence) -> None:
        self._deposit(self._on_presence, presence)

    def _deposit(self, process: Callable[..., None], *arguments: object) -> None:
        # a closed loop: the gateway ends
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(process, *arguments)

    def _on_chunk(self, raw: bytes, is_own_topic: bool) -> None:
        try:
            chunk = wire_chunk.decode(raw)
        except Malformed as error:
            self.count_dropped(error.reason)
            return
        session = self._sessions.get(chunk.client_id)
        if session:
            session.on_chunk(chunk)
        elif is_own_topic:
            self.count_dropped('other_client')

    def _on_presence(self, presence: Presence) -> None:
        if presence is Presence.THERE:
            if self.problem:
                self._availability.start()
            return
        if presence is Presence.LOST:
            text = f'{self._link.server} is lost: it was killed, hangs or is cut off'
            self._availability.lost(text)
            self._end_sessions(lambda: unavailable(f'{text}; retry later'))
        elif any(session.is_open for session in self._sessions.values()):
            # it ends, or has restarted already
            self._availability.start()
            self._end_sessions(lambda: SessionLost('the router closed its replies'))

    def _end_sessions(self, make_error: Callable[[], Exception]) -> None:
        for session in list(self._sessions.values()):
            session.on_lost(make_error())

    async def _read_status(self) -> GetStatusResponse:
        return await self._call(self._link.status, STATUS_TIMEOUT_S)

    async def _call(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a call that blocks in a thread of the pool."""
        call = self._calls.submit(function, *arguments)
        self._running.add(call)
        call.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(call)


async def _within(limit_s: float, *work: Awaitable[object]) -> None:
    """Await all, with their errors, and not for longer than the limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await asyncio.gather(*work, return_exceptions=True)
