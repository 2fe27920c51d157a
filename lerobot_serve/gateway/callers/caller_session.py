# SPDX-License-Identifier: Apache-2.0
"""The session of one caller in the gateway: turns, deadline and counting around the upstream's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
import contextlib

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.episode_names import EpisodeNames
from lerobot_serve.gateway.callers.predictions import (
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.counters import GatewayCounters, OK
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.upstream import check_same_names, PolicyContract, UpstreamSession
from lerobot_serve.session.turns import Turns

SUPERSEDED = 'a newer request of this caller replaced this one; use its prediction'


class LatestOnly:
    """
    `async with` it: waits for the turn, and holds it. Raises PredictionError (SUPERSEDED) when a
    newer request arrives while this one waits. The event loop owns it.
    """

    def __init__(self) -> None:
        self._turns = Turns[asyncio.Future[None]]()

    async def __aenter__(self) -> None:
        mine = asyncio.get_running_loop().create_future()
        replaced = self._turns.enter(mine)
        # one that was cancelled just now has not run since
        if replaced and not replaced.done():
            replaced.set_exception(PredictionError(Status.SUPERSEDED, SUPERSEDED))
        if self._turns.running is mine:
            return
        try:
            await mine
        except BaseException:
            self._leave(mine)
            raise

    async def __aexit__(self, *_: object) -> None:
        assert self._turns.running
        self._leave(self._turns.running)

    def _leave(self, turn: asyncio.Future[None]) -> None:
        following = self._turns.leave(turn)
        if following and not following.done():
            following.set_result(None)


class CallerSession:
    """An UpstreamSession. The event loop owns it."""

    opening: asyncio.Future[None]

    def __init__(
        self,
        caller: Caller,
        settings: GatewayParameters,
        counters: GatewayCounters,
        clock: Callable[[], float],
        release: Callable[[Caller], Awaitable[None]],
        episode_names: EpisodeNames,
        terms: OpenSessionRequest | None = None,
    ) -> None:
        self.caller, self._settings, self._release = caller, settings, release
        self.terms = terms
        self._counters, self._clock, self._episode_names = counters, clock, episode_names
        self._upstream: UpstreamSession | None = None
        self._mailbox = LatestOnly()
        self._running, self._quiet = 0, asyncio.Event()
        self._quiet.set()
        self._used_s = clock()
        self._requests = 0

    def begin(self, opening: Coroutine[object, object, None]) -> None:
        """Open the session in a task of its own."""
        self.opening = asyncio.ensure_future(opening)
        # read also where each caller that waited for it has left
        self.opening.add_done_callback(_read_error)

    def opened(self, upstream: UpstreamSession) -> None:
        """Use the session that was opened."""
        self._upstream = upstream
        self._counters.callers[self.caller.protocol] += 1
        self._counters.opened[self.caller.protocol] += 1

    @property
    def begin_text(self) -> str:
        """The log line of a new caller."""
        return f'{self.caller.client_id}: session opened; {NO_CAGE}'

    def end_text(self, why: str) -> str:
        """Return the log line of a caller that ended."""
        who = self.caller.client_id
        return f'{who}: session ended after {self._requests} requests: {why}; {NO_CAGE}'

    @property
    def contract(self) -> PolicyContract:
        return self._open_upstream().contract

    @property
    def idle_s(self) -> float:
        """The time since its last request; 0 while it opens or a request runs."""
        if self._running or not self.opening.done():
            return 0.0
        return self._clock() - self._used_s

    def is_idle(self) -> bool:
        """Return whether no request came for `idle_timeout_s`."""
        return self.idle_s >= self._settings.idle_timeout_s

    async def wait_quiet(self) -> None:
        """Wait until no request runs."""
        await self._quiet.wait()

    async def predict(self, request: PredictionRequest) -> Prediction:
        """
        Return the prediction for a request in the names of `contract`. Raises PredictionError,
        also for one whose contract ends while it waits.
        """
        begin_s, status = self._begin_request(), str(Status.FAILED)
        try:
            prediction = await self._predict_in_time(request, begin_s)
            status = OK
        except PredictionError as error:
            status = str(error.status)
            raise
        except asyncio.CancelledError:
            # the caller left
            status = 'cancelled'
            raise
        finally:
            self._end_request(status, begin_s)
        return prediction

    def _begin_request(self) -> float:
        self._requests += 1
        self._running += 1
        self._quiet.clear()
        self._used_s = self._clock()
        return self._used_s

    def _end_request(self, status: str, begin_s: float) -> None:
        self._used_s = self._clock()
        self._counters.note_request(self.caller.protocol, status, self._used_s - begin_s)
        self._running -= 1
        if not self._running:
            self._quiet.set()

    async def _predict_in_time(self, request: PredictionRequest, begin_s: float) -> Prediction:
        limit_s = self._settings.request_timeout_s
        limit_s = min(request.timeout_s or limit_s, limit_s)
        mapped_for = self.contract
        episode_id = self._episode_names.name_at_router(self.caller, request.episode_id)
        try:
            async with asyncio.timeout(limit_s), self._mailbox:
                # the request before this one may have found another policy
                check_same_names(mapped_for, self.contract)
                # what is left of it bounds the upstream, too
                left_s = max(begin_s + limit_s - self._clock(), 1e-3)
                scoped = request.scoped(left_s, episode_id)
                return await self._open_upstream().predict(scoped)
        except TimeoutError:
            raise PredictionError(
                Status.TOO_LATE,
                f'no prediction within {limit_s:g} s; send the newest observation, or allow more '
                'time',
            ) from None

    def _open_upstream(self) -> UpstreamSession:
        if self._upstream is None:
            raise PredictionError(
                Status.UNAVAILABLE, 'the session has ended; send the request again to open it'
            )
        return self._upstream

    async def close(self) -> None:
        """End the session, as Gateway.release does."""
        await self._release(self.caller)

    async def end(self) -> bool:
        """Close the session upstream, also one that opens; return whether it was open."""
        with contextlib.suppress(PredictionError):
            # a caller that stops waiting for the end does not leave a session open at the router
            await asyncio.shield(self.opening)
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return False
        # nor does one that leaves while the router is told
        await asyncio.shield(self._close(upstream))
        return True

    async def _close(self, upstream: UpstreamSession) -> None:
        try:
            await upstream.close()
        finally:
            # a caller is counted for as long as it holds a place at a server
            self._counters.callers[self.caller.protocol] -= 1


def _read_error(done: asyncio.Future[None]) -> None:
    if not done.cancelled():
        done.exception()
