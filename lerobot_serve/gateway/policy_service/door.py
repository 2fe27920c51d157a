# SPDX-License-Identifier: Apache-2.0
"""
The door PolicyService: Predict, PredictStream and Describe on raw bytes, reflection and health
behind one gRPC server. The event loop owns it; large images are decoded in a thread of the door.

A caller is its connection and its name (metadata client-name, and the name of its token). Streams
of one caller share its session.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
import contextlib
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.services.policy_service import POOL, record_of, SERVICE
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.mapping import read_mapping
from lerobot_serve.gateway.callers.predictions import invalid, Prediction, PredictionError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.grpc_server.bounded import CallMessages
from lerobot_serve.gateway.grpc_server.contexts import (
    caller_of,
    Context,
    NOTE,
    prediction_metadata,
)
from lerobot_serve.gateway.grpc_server.server import GrpcServer
from lerobot_serve.gateway.policy_service import conversion

CALLS_PER_CALLER = 4
# observations of one stream that wait for a reply: one runs, one waits, others are superseded
STREAM_LIMIT = 4
# longest time that a caller may leave a reply unread
WRITE_LIMIT_S = 10.0
HEALTH_PERIOD_S = 1.0
STATUSES = health_pb2.HealthCheckResponse


@dataclass(slots=True)
class Stream:
    """
    One PredictStream; `terms` are those of the session that it opened, if it did. Once it sent
    large images, all are decoded in the thread: its observations stay in their order.
    """

    caller: Caller
    terms: OpenSessionRequest | None = None
    sends_large: bool = False


class HandlerList:
    """Collects what the generated functions of grpc add to a server."""

    def __init__(self) -> None:
        self.found: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.found.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same methods again, which grpc.aio does not use."""


class Health:
    """
    Health of gRPC: SERVING while a policy is served, which it asks the gateway once a period.

    Orchestrators ask by grpc.health.v1.Health/Check, such as a probe of Kubernetes.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.servicer = health.aio.HealthServicer()
        self._gateway, self._period_s = gateway, HEALTH_PERIOD_S
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Set the first status, and follow it from then on."""
        await self._update()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            await self._update()

    async def _update(self) -> None:
        try:
            await self._gateway.describe()
            status = STATUSES.SERVING
        except PredictionError:
            status = STATUSES.NOT_SERVING
        for service in ('', SERVICE):
            await self.servicer.set(service, status)

    async def stop(self) -> None:
        """Say NOT_SERVING. May be called twice."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.servicer.enter_graceful_shutdown()


class PolicyServiceDoor(GrpcServer):
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: EndpointSettings) -> None:
        """
        gRPC refuses an observation above `max_message_mb` by its length. Raises UserError for a
        mapping that cannot be read.
        """
        self._mapping = read_mapping(settings.mapping)
        self._streams: Counter[Caller] = Counter()
        self._decoder = ThreadPoolExecutor(1, 'policy_service_decoder')
        self._health = Health(gateway)
        others = HandlerList()
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, others)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names, pool=POOL)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, others)
        methods = {
            'Predict': grpc.unary_unary_rpc_method_handler(self.predict),
            'PredictStream': grpc.stream_stream_rpc_method_handler(self.predict_stream),
            'Describe': grpc.unary_unary_rpc_method_handler(self.describe),
        }
        super().__init__(
            gateway,
            exposure,
            settings,
            SERVICE,
            methods,
            calls_per_caller=CALLS_PER_CALLER,
            message_bytes=settings.max_message_bytes,
            open_handlers=others.found,
        )

    async def start(self) -> None:
        """Listen. Raises UserError."""
        await super().start()
        await self._health.start()

    async def stop(self) -> None:
        """End the connections and the thread. May be called twice."""
        await self._health.stop()
        await super().stop()
        self._decoder.shutdown(wait=True, cancel_futures=True)

    async def predict(self, message: bytes, context: Context) -> bytes:
        """Answer one observation. Raises PredictionError."""
        stream = Stream(caller_of(context, self._exposure))
        seen = conversion.read_observation(message)
        if seen.HasField('session'):
            raise invalid('a session is opened by PredictStream; leave it out here')
        prediction = await self._predicted(stream, seen, context)
        await context.send_initial_metadata(NOTE)
        context.set_trailing_metadata(prediction_metadata(prediction))
        return conversion.action_of(prediction, seen.step_index)

    async def describe(self, _: bytes, context: Context) -> bytes:
        """Return what is served. Raises PredictionError."""
        caller_of(context, self._exposure)
        contract = await self._gateway.describe()
        return bytes(conversion.policy_of(contract).SerializeToString())

    async def predict_stream(self, messages: CallMessages, context: Context) -> None:
        """Answer each observation of a stream. Raises PredictionError."""
        caller = caller_of(context, self._exposure)
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
            self._on_refused('stopped_reading')
        except grpc.aio.InternalError:  # type: ignore[attr-defined]  # the stubs lack it
            self._on_refused('reply_unsent')
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
            self._note_error(context, error)
            return conversion.refused_action(error, step_index)

    async def _opened(self, stream: Stream, seen: Any) -> bytes:
        """Open the session of a stream; later messages of the stream need its terms, too."""
        stream.terms = record_of(seen.session)
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

    async def _end_stream(self, caller: Caller) -> None:
        """Free the place of a caller with its last stream."""
        self._streams[caller] -= 1
        if not self._streams[caller]:
            del self._streams[caller]
            await self._gateway.release(caller)
