# SPDX-License-Identifier: Apache-2.0
"""
The session of one caller at the router: opened when needed, one request in flight.

The event loop owns it. A session that was lost is opened again by the next request, and the
request that found it lost is sent once more, unless the names of the policy changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
import time
from typing import Protocol

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.gateway.callers.caller_session import SUPERSEDED
from lerobot_serve.gateway.callers.predictions import (
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.router.image_encoding import ImageEncoder
from lerobot_serve.gateway.router.outcomes import prediction_of, SessionLost, unavailable
from lerobot_serve.gateway.upstream import (
    check_request,
    check_same_names,
    PolicyContract,
)
from lerobot_serve.session.numbers import SessionNumbers

# consecutive requests without a reply after which the session is opened again
MAX_UNANSWERED = 2


class SessionHost(Protocol):
    """What a session uses of its upstream."""

    @property
    def images(self) -> ImageEncoder: ...

    async def open_session(
        self, client_id: str, epoch: int, terms: OpenSessionRequest | None
    ) -> tuple[OpenSessionResponse, PolicyContract]:
        """Open a session. Raises PredictionError."""

    async def close_session(self, client_id: str, epoch: int) -> None: ...

    def send(self, raw: bytes) -> None: ...

    def announce(self, episode: ResetEpisodeRequest) -> None: ...

    def forget(self, session: RouterSession) -> None: ...

    def count_dropped(self, reason: str) -> None: ...


@dataclass(slots=True)
class _LastChunk:
    """How long the caller can go on with its actions, if it executes all of them."""

    until_s: float = 0.0

    def begin(self, steps: int, control_hz: float, now_s: float) -> None:
        self.until_s = now_s + (steps / control_hz if control_hz > 0 else 0.0)

    def remaining_s(self, now_s: float) -> float:
        return max(0.0, self.until_s - now_s)


class RouterSession:
    """An UpstreamSession; see the module."""

    def __init__(
        self,
        client_id: str,
        host: SessionHost,
        terms: OpenSessionRequest | None = None,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.client_id, self._host, self._clock_ns = client_id, host, clock_ns
        self._terms = terms
        self._numbers = SessionNumbers(client_id)
        self._contract: PolicyContract | None = None
        self._reply: asyncio.Future[Chunk] | None = None
        self._is_open, self._is_closed = False, False
        self._unanswered = 0
        self._last_chunk = _LastChunk()

    @property
    def contract(self) -> PolicyContract:
        """The contract of the session opened last."""
        assert self._contract is not None
        return self._contract

    @property
    def is_open(self) -> bool:
        """Whether the router has this session, as far as is known."""
        return self._is_open

    async def open(self) -> None:
        """Open the session, or open it again. Raises PredictionError."""
        if self._is_closed:
            raise unavailable('the session has ended; send the request again to open it')
        epoch = self._numbers.next_session_epoch()
        reply, self._contract = await self._host.open_session(self.client_id, epoch, self._terms)
        self._numbers.begin_session(reply.schema_version)
        self._is_open, self._unanswered = True, 0

    async def predict(self, request: PredictionRequest) -> Prediction:
        """Return the prediction for a request. Raises PredictionError."""
        self._supersede()
        mapped_for = self.contract
        check_request(request, mapped_for)
        try:
            return await self._predict_once(request, mapped_for)
        except SessionLost:
            self._is_open = False
        try:
            # its episode has begun
            return await self._predict_once(replace(request, episode_start=False), mapped_for)
        except SessionLost as lost:
            self._is_open = False
            raise unavailable(f'the session was lost twice: {lost}') from None

    def _supersede(self) -> None:
        if self._reply and not self._reply.done():
            self._reply.set_exception(PredictionError(Status.SUPERSEDED, SUPERSEDED))

    async def _predict_once(
        self, request: PredictionRequest, mapped_for: PolicyContract
    ) -> Prediction:
        if not self._is_open or self._unanswered >= MAX_UNANSWERED:
            await self.open()
            check_same_names(mapped_for, self.contract)
            check_request(request, self.contract)
        raw = await self._encode(request)
        self._reply = asyncio.get_running_loop().create_future()
        # until its reply is there, it has none
        self._unanswered += 1
        self._host.send(raw)
        chunk = await self._reply
        self._unanswered = 0
        prediction = prediction_of(chunk, self.contract, self._numbers.episode_id)
        self._numbers.awaits_start = False
        self._last_chunk.begin(
            len(prediction.actions), self.contract.control_hz, self._clock_ns() / 1e9
        )
        return prediction

    async def _encode(self, request: PredictionRequest) -> bytes:
        """Return the bytes of the next request. Raises PredictionError."""
        try:
            images = await self._host.images.encode(request.images, self.contract)
            self._begin_episode(request)
            now_ns = self._clock_ns()
            return wire_observation.encode(
                Observation(
                    self._numbers.next_header(now_ns),
                    client_id=self.client_id,
                    episode_id=self._numbers.episode_id,
                    state=request.state[None, :],
                    images=images,
                    task=request.task,
                    inference_delay_steps=request.inference_delay_steps,
                    queue_remaining_s=self._last_chunk.remaining_s(now_ns / 1e9),
                )
            )
        except Unencodable as error:
            raise PredictionError(Status.INVALID, str(error)) from None

    def _begin_episode(self, request: PredictionRequest) -> None:
        """Begin the episode of a request unless it is the present one."""
        numbers = self._numbers
        is_other = request.episode_id not in ('', numbers.episode_id)
        if numbers.episode_id and not (request.episode_start or is_other):
            return
        numbers.begin_episode(request.episode_id)
        # the first request of a session announces its episode itself
        if numbers.seq:
            self._host.announce(numbers.reset_request())

    # from the upstream

    def on_chunk(self, chunk: Chunk) -> None:
        """Process a reply to this caller."""
        reply = self._reply
        if reply and not reply.done() and not self._numbers.mismatch(chunk.header):
            reply.set_result(chunk)
        else:
            self._host.count_dropped('late_chunk')

    def on_lost(self, error: Exception) -> None:
        """End the session, and the request in flight with `error`."""
        self._is_open = False
        if self._reply and not self._reply.done():
            self._reply.set_exception(error)

    async def close(self) -> None:
        """Close the session. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_lost(unavailable('the session has ended; send the request again to open it'))
        self._host.forget(self)
        # also one whose reply was not awaited
        await self._host.close_session(self.client_id, self._numbers.requested_epoch)
