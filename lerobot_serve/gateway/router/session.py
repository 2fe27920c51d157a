# SPDX-License-Identifier: Apache-2.0
"""
The session of one caller at the router: opened when needed, one request in flight.

The event loop owns it. A session that was lost is opened again by the next request, and the
request that found it lost is sent once more, unless the names of the policy changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
import time

from lerobot_serve.contract.cdr import Parts
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.callers.caller_session import SUPERSEDED
from lerobot_serve.gateway.callers.predictions import (
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.router.calls import RouterCalls
from lerobot_serve.gateway.router.outcomes import prediction_of, unavailable
from lerobot_serve.gateway.upstream import check_request, check_same_names, PolicyContract
from lerobot_serve.session.machine import ReplyDropped, SessionLost, SessionMachine, State

# consecutive requests without a reply after which the session is opened again
MAX_UNANSWERED = 2
# the request that found its session lost is sent once more
SESSION_ATTEMPTS = 2
ENDED = 'the session has ended; send the request again to open it'


class RouterSession:
    """An UpstreamSession; see the module."""

    def __init__(
        self,
        client_id: str,
        calls: RouterCalls,
        forget: Callable[[RouterSession], None],
        terms: OpenSessionRequest | None = None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.client_id, self._calls, self._clock_ns = client_id, calls, clock_ns
        self._forget, self._terms = forget, terms
        self._machine = SessionMachine[asyncio.Future[Chunk]](client_id)
        self._contract: PolicyContract | None = None
        self._unanswered = 0
        # until when the caller can go on with the actions of the last chunk, if it executes all
        self._playable_until_s = 0.0

    @property
    def contract(self) -> PolicyContract:
        """The contract of the session opened last."""
        assert self._contract is not None
        return self._contract

    @property
    def is_open(self) -> bool:
        """Whether the router has this session, as far as is known."""
        return self._machine.is_open

    async def open(self) -> None:
        """Open the session, or open it again. Raises PredictionError."""
        machine = self._machine
        terms = await self._calls.terms_of(self.client_id, self._terms)
        if machine.state is State.ENDED:
            raise unavailable(ENDED)
        request = machine.request(terms, self._calls.reply_topic)
        agreement, self._contract = await self._calls.open_session(request)
        if not machine.opened(request.session_epoch, agreement.schema_version):
            await self._calls.close_session(request)
            raise unavailable(ENDED)
        self._unanswered = 0

    async def predict(self, request: PredictionRequest) -> Prediction:
        """Return the prediction for a request. Raises PredictionError."""
        self._give_up(PredictionError(Status.SUPERSEDED, SUPERSEDED))
        mapped_for = self.contract
        check_request(request, mapped_for)
        for _ in range(SESSION_ATTEMPTS):
            try:
                return await self._predict_once(request, mapped_for)
            except SessionLost as lost:
                self._machine.lost(str(lost))
            # its episode has begun
            request = replace(request, episode_start=False)
        raise unavailable(f'the session was lost twice: {self._machine.why_lost}')

    def _give_up(self, error: Exception) -> None:
        """End the request in flight."""
        reply = self._machine.release()
        if reply and not reply.done():
            reply.set_exception(error)

    async def _predict_once(
        self, request: PredictionRequest, mapped_for: PolicyContract
    ) -> Prediction:
        if not self.is_open or self._unanswered >= MAX_UNANSWERED:
            await self.open()
            check_same_names(mapped_for, self.contract)
            check_request(request, self.contract)
        raw = await self._encode(request)
        if not self.is_open:
            raise SessionLost(self._machine.why_lost)
        reply: asyncio.Future[Chunk] = asyncio.get_running_loop().create_future()
        self._machine.sent(reply)
        # until its reply is there, it has none
        self._unanswered += 1
        self._calls.send(raw)
        chunk = await reply
        self._unanswered = 0
        prediction = prediction_of(chunk, self.contract, self._machine.episode_id)
        self._machine.awaits_start = False
        hz = self.contract.control_hz
        playable_s = len(prediction.actions) / hz if hz > 0 else 0.0
        self._playable_until_s = self._clock_ns() / 1e9 + playable_s
        return prediction

    async def _encode(self, request: PredictionRequest) -> Parts:
        """Return the bytes of the next request. Raises PredictionError."""
        try:
            images = await self._calls.images.encode(request.images, self.contract)
            self._begin_episode(request)
            now_ns = self._clock_ns()
            return wire_observation.encode_parts(
                Observation(
                    self._machine.next_header(now_ns),
                    client_id=self.client_id,
                    episode_id=self._machine.episode_id,
                    state=request.state[None, :],
                    images=images,
                    task=request.task,
                    inference_delay_steps=request.inference_delay_steps,
                    queue_remaining_s=max(0.0, self._playable_until_s - now_ns / 1e9),
                )
            )
        except Unencodable as error:
            raise PredictionError(Status.INVALID, str(error)) from None

    def _begin_episode(self, request: PredictionRequest) -> None:
        """Begin the episode of a request unless it is the present one."""
        machine = self._machine
        is_other = request.episode_id not in ('', machine.episode_id)
        if machine.episode_id and not (request.episode_start or is_other):
            return
        machine.begin_episode(request.episode_id)
        # the first request of a session announces its episode itself
        if machine.seq:
            self._calls.announce(machine.reset_request())

    # from the upstream

    def on_chunk(self, chunk: Chunk) -> bool:
        """Take the reply to a request; return False for one that nobody waits for."""
        try:
            self._machine.take(chunk.header).set_result(chunk)
        except (ReplyDropped, asyncio.InvalidStateError):
            # or its caller has left
            return False
        return True

    def on_lost(self, error: Exception) -> None:
        """Note that the session is gone; end the request in flight with `error`."""
        self._machine.lost(str(error))
        self._give_up(error)

    async def close(self) -> None:
        """Close the session. May be called twice."""
        if self._machine.state is State.ENDED:
            return
        self._give_up(unavailable(ENDED))
        self._machine.end()
        self._forget(self)
        # also one whose reply was not awaited
        if self._machine.requested:
            await self._calls.close_session(self._machine.requested)
