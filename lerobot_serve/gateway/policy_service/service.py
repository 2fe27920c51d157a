# SPDX-License-Identifier: Apache-2.0
"""
Predict, PredictStream and Describe, on raw bytes. The event loop owns it; large images are decoded
in a thread of the service.

A caller is its connection and its name (metadata client-name, and the name of its token). Streams
of one caller share its session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.contract.services.policy_service import SERVICE
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.mapping import EQUAL_NAMES, NameMapping
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionError, Status
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.grpc_server.bounded import CallMessages
from lerobot_serve.gateway.grpc_server.callers import caller_of, Context
from lerobot_serve.gateway.grpc_server.statuses import abort, NOTE, prediction_metadata
from lerobot_serve.gateway.policy_service import conversion
from lerobot_serve.gateway.upstream import SessionTerms

PROTOCOL = 'policy_service'
# observations of one stream that wait for a reply: one runs, one waits, others are superseded
STREAM_LIMIT = 4
# longest time that a caller may leave a reply unread
WRITE_LIMIT_S = 10.0


@dataclass(slots=True)
class Stream:
    """
    One PredictStream; `terms` are those of the session that it opened, if it did. Once it sent
    large images, all are decoded in the thread: its observations stay in their order.
    """

    caller: Caller
    terms: SessionTerms | None = None
    sends_large: bool = False


class PolicyService:
    """See the module."""

    def __init__(
        self, gateway: Gateway, exposure: Exposure, mapping: NameMapping = EQUAL_NAMES
    ) -> None:
        self._gateway, self._exposure, self._mapping = gateway, exposure, mapping
        self._streams: Counter[Caller] = Counter()
        self._decoder = ThreadPoolExecutor(1, 'policy_service_decoder')

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._decoder.shutdown(wait=True, cancel_futures=True)

    @property
    def handlers(self) -> grpc.GenericRpcHandler:
        """The methods, for a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                'Predict': grpc.unary_unary_rpc_method_handler(self.predict),
                'PredictStream': grpc.stream_stream_rpc_method_handler(self.predict_stream),
                'Describe': grpc.unary_unary_rpc_method_handler(self.describe),
            },
        )

    async def predict(self, message: bytes, context: Context) -> bytes:
        """Answer one observation, or end the call with a status."""
        try:
            caller = caller_of(context, self._exposure, PROTOCOL)
            seen = conversion.read_observation(message)
            if seen.HasField('session'):
                raise conversion.invalid('a session is opened by PredictStream; leave it out here')
            stream = Stream(caller)
            prediction = await self._predicted(stream, seen, context)
        except PredictionError as error:
            self._count(error)
            return await abort(context, error)
        await context.send_initial_metadata(NOTE)
        context.set_trailing_metadata(prediction_metadata(prediction))
        return conversion.action_of(prediction, seen.step_index)

    async def describe(self, _: bytes, context: Context) -> bytes:
        """Return what is served, or end the call with a status."""
        try:
            caller_of(context, self._exposure, PROTOCOL)
            contract = await self._gateway.describe()
        except PredictionError as error:
            self._count(error)
            return await abort(context, error)
        return bytes(conversion.policy_of(contract).SerializeToString())

    async def predict_stream(self, messages: CallMessages, context: Context) -> None:
        """Answer each observation of a stream."""
        try:
            caller = caller_of(context, self._exposure, PROTOCOL)
        except PredictionError as error:
            self._count(error)
            await abort(context, error)
        # a stream that is cut while it is sent cannot be given its status: gRPC sends it once
        with messages.working():
            await context.send_initial_metadata(NOTE)
        self._streams[caller] += 1
        try:
            await self._answer_all(messages, context, Stream(caller))
        finally:
            await self._end_stream(caller)

    async def _answer_all(self, messages: CallMessages, context: Context, stream: Stream) -> None:
        places, writing = asyncio.Semaphore(STREAM_LIMIT), asyncio.Lock()
        task = asyncio.current_task()
        assert task

        async def answer(message: bytes) -> None:
            try:
                with messages.working():
                    reply = await self._reply(stream, message, context)
                # a client that reads slowly holds its own places only
                async with writing:
                    if not await self._write(context, reply):
                        # a status would wait behind the reply; this resets the stream
                        task.cancel()
            finally:
                places.release()

        async with asyncio.TaskGroup() as group:
            async for message in messages:
                await places.acquire()
                group.create_task(answer(message))

    async def _write(self, context: Context, reply: bytes) -> bool:
        """Return whether a reply was sent; not to a caller that left, or reads none."""
        try:
            async with asyncio.timeout(WRITE_LIMIT_S):
                await context.write(reply)
                return True
        except TimeoutError:
            self._gateway.on_refused(PROTOCOL, 'stopped_reading')
        except grpc.aio.InternalError:  # type: ignore[attr-defined]  # the stubs lack it
            self._gateway.on_refused(PROTOCOL, 'reply_unsent')
        return False

    async def _reply(self, stream: Stream, message: bytes, context: Context) -> bytes:
        step_index = 0
        try:
            seen = conversion.read_observation(message)
            step_index = seen.step_index
            if seen.HasField('session'):
                return await self._opened(stream, seen)
            prediction = await self._predicted(stream, seen, context)
            return conversion.action_of(prediction, step_index)
        except PredictionError as error:
            self._count(error)
            return conversion.refused_action(error, step_index)

    async def _opened(self, stream: Stream, seen: Any) -> bytes:
        """Open the session of a stream; later messages of the stream need its terms, too."""
        stream.terms = conversion.terms_of(seen.session)
        session = await self._gateway.session(stream.caller, stream.terms)
        return conversion.opened_action(session.contract, stream.caller.client_id, seen.step_index)

    async def _predicted(self, stream: Stream, seen: Any, context: Context) -> Prediction:
        session = await self._gateway.session(stream.caller, stream.terms)
        frames = await self._frames(stream, seen)
        # after the decoding, which may have waited
        left_s = context.time_remaining()
        request = conversion.request_of(seen, frames, session.contract, self._mapping, left_s)
        return await session.predict(request)

    async def _frames(self, stream: Stream, seen: Any) -> dict[str, Uint8Array]:
        """Return the images of an observation. Raises PredictionError."""
        stream.sends_large = stream.sends_large or conversion.takes_long(seen)
        if not stream.sends_large:
            return conversion.frames_of(seen)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoder, conversion.frames_of, seen)

    def _count(self, error: PredictionError) -> None:
        if error.status in (Status.INVALID, Status.UNAUTHORIZED):
            self._gateway.on_refused(PROTOCOL, error.status)

    async def _end_stream(self, caller: Caller) -> None:
        """Free the place of a caller with its last stream."""
        self._streams[caller] -= 1
        if not self._streams[caller]:
            del self._streams[caller]
            await self._gateway.release(caller)
