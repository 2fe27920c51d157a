# SPDX-License-Identifier: Apache-2.0
"""
The core of the gateway: sessions of callers, admission, counters and the log of callers.

The event loop owns it. A door asks for the session before each request: one that was idle has
been closed, and is opened again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
import contextlib
import time
from typing import Protocol

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.caller_session import CallerSession
from lerobot_serve.gateway.callers.episode_names import EpisodeNames
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.counters import GatewayCounters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.upstream import (
    PolicyContract,
    Upstream,
    UpstreamSession,
)
from lerobot_serve.telemetry.log_throttle import LogThrottle

# a caller without a request for so long gives its place to a new one when all are taken
GIVES_WAY_S = 10.0
# the pause that a refused caller is asked for
RETRY_AFTER_S = 1.0
# of all sessions together at the end, beside drain_timeout_s
CLOSE_LIMIT_S = 2.0
OTHER_TERMS = (
    'this caller has an open session on other terms; end its stream first, or give each client a '
    'name of its own'
)
DRAINING = 'the gateway is shutting down; connect to another one, or retry when it runs again'


class Log(Protocol):
    """The logger of the node."""

    def info(self, text: str, /) -> object: ...

    def warning(self, text: str, /) -> object: ...


class Gateway:
    """See the module."""

    def __init__(
        self,
        upstream: Upstream,
        settings: GatewayParameters,
        log: Log,
        *,
        clock: Callable[[], float] = time.monotonic,
        counters: GatewayCounters | None = None,
    ) -> None:
        self.settings, self.counters = settings, counters or GatewayCounters()
        self._upstream, self._clock = upstream, clock
        # of the doors, too
        self.log = log
        self._sessions: dict[Caller, CallerSession] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._episode_names = EpisodeNames(
            lambda caller: self.on_refused(caller.protocol, 'episode_forgotten'), clock=clock
        )
        self._throttle = LogThrottle(lambda: int(1e9 * clock()))

    @property
    def callers(self) -> tuple[Caller, ...]:
        """The callers with a session."""
        return tuple(self._sessions)

    async def describe(self) -> PolicyContract:
        """Return what is served now. Raises PredictionError (UNAVAILABLE)."""
        return await self._upstream.describe()

    async def session(
        self, caller: Caller, terms: OpenSessionRequest | None = None
    ) -> UpstreamSession:
        """
        Return the session of a caller, and open it first where there is none, on its terms. Raises
        PredictionError: OVERLOADED above `max_callers`, UNAVAILABLE without a server, and after
        `request_timeout_s`; INVALID for an open session on other terms.
        """
        if self._is_draining:
            raise self._refused(caller, Status.UNAVAILABLE, 'draining', DRAINING)
        session = self._sessions.get(caller)
        if session is None:
            self._admit(caller)
            session = CallerSession(
                caller,
                self.settings,
                self.counters,
                self._clock,
                self.release,
                self._episode_names,
                terms,
            )
            self._sessions[caller] = session
            session.begin(self._open(session))
        elif terms and session.terms != terms:
            raise self._refused(caller, Status.INVALID, 'other_terms', OTHER_TERMS)
        if not session.opening.done():
            await self._opened(session)
        session.opening.result()
        return session

    async def _opened(self, session: CallerSession) -> None:
        """Wait until a session is open, which goes on for others and the next request."""
        limit_s = self.settings.request_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                # one caller that leaves does not end the opening for the others
                await asyncio.shield(session.opening)
        except TimeoutError:
            raise self._refused(
                session.caller,
                Status.UNAVAILABLE,
                'slow_opening',
                f'the server did not open a session within {limit_s:g} s; retry later',
            ) from None

    def _admit(self, caller: Caller) -> None:
        if len(self._sessions) < self.settings.max_callers:
            return
        idlest = max(self._sessions.values(), key=lambda session: session.idle_s)
        if idlest.idle_s < GIVES_WAY_S:
            raise self._refused(
                caller,
                Status.OVERLOADED,
                'max_callers',
                f'{len(self._sessions)} callers have a session, max_callers is '
                f'{self.settings.max_callers}; retry when one has ended, or raise max_callers',
            )
        del self._sessions[idlest.caller]
        self.on_refused(idlest.caller.protocol, 'gave_way')
        why = f'all places were taken, and it sent no request for {idlest.idle_s:.0f} s'
        self._begin_end(idlest, why)

    def _refused(self, caller: Caller, status: Status, reason: str, text: str) -> PredictionError:
        self.on_refused(caller.protocol, reason)
        return PredictionError(status, text, RETRY_AFTER_S)

    async def _open(self, session: CallerSession) -> None:
        try:
            opened = await self._upstream.open(session.caller, session.terms)
        except BaseException as error:
            # a caller that left and came back has another session by now
            if self._sessions.get(session.caller) is session:
                del self._sessions[session.caller]
            if isinstance(error, PredictionError):
                self.on_refused(session.caller.protocol, error.status)
            raise
        session.opened(opened)
        self.log.info(session.begin_text)

    def on_refused(self, protocol: str, reason: str) -> None:
        """Count what a door refused before it became a request; `reason` is one word."""
        self.counters.refused[protocol, str(reason)] += 1

    def log_refused(self, protocol: str, reason: str, who: str, text: str) -> None:
        """Count a refusal and log who and why; repetitions for 10 s are one line."""
        self.on_refused(protocol, reason)
        self.warn_throttled((protocol, reason, who), f'{protocol}: {who}: {text}')

    def warn_throttled(self, key: Hashable, text: str) -> None:
        """Log at once, and repetitions of a key for 10 s as one line."""
        self._throttle.emit(self.log.warning, key, text)

    async def release(self, caller: Caller) -> None:
        """End the session of a caller that left; no error without one."""
        if ending := self.begin_release(caller):
            # also one that opens is ended where its door stops waiting for it
            await asyncio.shield(ending)

    def begin_release(self, caller: Caller) -> asyncio.Task[None] | None:
        """Begin to end the session of a caller; one that opens is ended once it is open."""
        session = self._sessions.pop(caller, None)
        return self._begin_end(session, 'it left') if session else None

    async def close_idle(self) -> None:
        """Close the sessions without a request for `idle_timeout_s`; called once a second."""
        self._throttle.flush()
        for session in [each for each in self._sessions.values() if each.is_idle()]:
            # while those before it ended, it may have got a request, or have been replaced
            if self._sessions.get(session.caller) is session and session.is_idle():
                del self._sessions[session.caller]
                limit_s = self.settings.idle_timeout_s
                await self._end(session, f'no request for {limit_s:g} s')

    def _begin_end(self, session: CallerSession, why: str) -> asyncio.Task[None]:
        ending = asyncio.create_task(self._end(session, why))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _end(self, session: CallerSession, why: str) -> None:
        if await session.end():
            self.log.info(session.end_text(why))

    async def drain(self) -> None:
        """Refuse new requests, await running ones, end all sessions and the upstream."""
        self._is_draining = True
        running = [each.wait_quiet() for each in self._sessions.values()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.drain_timeout_s):
                await asyncio.gather(*running)
        sessions, self._sessions = list(self._sessions.values()), {}
        ending = [asyncio.ensure_future(self._end(each, 'the gateway ends')) for each in sessions]
        await self._ended_in_time({*ending, *self._ending})
        await self._upstream.close()
        self._throttle.flush()

    async def _ended_in_time(self, ending: set[asyncio.Future[None]]) -> None:
        """Await sessions that close at the same time, not for longer than CLOSE_LIMIT_S."""
        if not ending:
            return
        done, left = await asyncio.wait(ending, timeout=CLOSE_LIMIT_S)
        for each in left:
            each.cancel()
        if left:
            self.log.warning(
                f'the server did not close {len(left)} of {len(ending)} sessions within '
                f'{CLOSE_LIMIT_S:g} s; it closes them after its session_idle_s'
            )
        for each in done:
            # an error of one session ends the gateway no earlier than the others
            each.result()
