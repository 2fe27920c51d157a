# SPDX-License-Identifier: Apache-2.0
"""
Handlers of gRPC with bounds: each call has a place, and does not rest for ever.

grpc itself awaits the message of a call without a limit, and refuses what is above its own limit
without a trace. So each method is a stream here, also one with a single message. Event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
import contextlib
from functools import partial
import inspect
from typing import Any, TypeAlias

import grpc

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import host_of
from lerobot_serve.gateway.callers.predictions import invalid, PredictionError, Status
from lerobot_serve.gateway.grpc_server.calls import Call, Calls, CallSettings, RETRY_AFTER_S
from lerobot_serve.gateway.grpc_server.contexts import abort, address_of, check_token, Context

# an RpcMethodHandler; its stubs have no attributes
Handler: TypeAlias = Any
OnError = Callable[[Context, PredictionError], object]
NO_MESSAGE = 'the call has no message; send one'


class CallMessages:
    """The messages of a call, as a handler reads them; each one ends its rest."""

    def __init__(self, messages: AsyncIterator[Any], call: Call) -> None:
        self._messages, self.call = messages, call

    def __aiter__(self) -> CallMessages:
        return self

    async def __anext__(self) -> Any:
        message = await anext(self._messages)
        self.call.touch()
        return message

    def working(self) -> contextlib.AbstractContextManager[None]:
        """Do not let the call rest while a request of it runs."""
        return self.call.working()


class BoundedHandlers(grpc.GenericRpcHandler):
    """
    The handlers of another, with the bounds of `calls`. A call that `exposure` does not let in
    takes no place; without one, all are let in. A PredictionError of a handler ends its call;
    `on_error` is told before.
    """

    def __init__(
        self,
        inner: Any,
        calls: Calls,
        exposure: Exposure | None = None,
        on_error: OnError = lambda context, error: None,
    ) -> None:
        self._inner, self._calls, self._exposure = inner, calls, exposure
        self._on_error = on_error

    def service(self, handler_call_details: Any) -> Handler:
        """Return the handler of a method, None for an unknown one."""
        handler = self._inner.service(handler_call_details)
        return self._bounded(handler) if handler else None

    def _bounded(self, handler: Handler) -> Handler:
        make = grpc.stream_unary_rpc_method_handler
        if handler.response_streaming:
            make = grpc.stream_stream_rpc_method_handler
        run = partial(self._run, handler)
        return make(run, handler.request_deserializer, handler.response_serializer)

    async def _run(self, handler: Handler, messages: AsyncIterator[Any], context: Context) -> Any:
        calls, call = self._calls, None
        address = host_of(address_of(context.peer()))
        try:
            if self._exposure:
                check_token(context, self._exposure)
            async with asyncio.timeout(None) as timeout:
                with calls.running(address, timeout) as call:
                    seen = CallMessages(messages, call)
                    return await _answer(handler, calls.settings, seen, context)
        except PredictionError as refused:
            error = refused
            if error.status is Status.UNAUTHORIZED:
                calls.on_refused(error.status, address, error.text)
            elif call:
                self._on_error(context, error)
        except TimeoutError:
            if call is None or not call.has_expired:
                raise
            calls.on_refused(call.reason, call.address, call.text)
            error = PredictionError(Status.UNAVAILABLE, call.text, RETRY_AFTER_S)
        return await abort(context, error)


async def _answer(
    handler: Handler, settings: CallSettings, messages: CallMessages, context: Context
) -> Any:
    call = messages.call
    if handler.request_streaming:
        limit_s = settings.idle_timeout_s
        call.rest(limit_s, f'the stream was idle for {limit_s:g} s and has ended; open it again')
        behavior = handler.stream_stream if handler.response_streaming else handler.stream_unary
        return await _replied(behavior(messages, context), context)
    message = await _only_message(messages, call, settings.first_message_s)
    if handler.response_streaming:
        # it says something when there is something to say
        call.rest(None)
        return await _replied(handler.unary_stream(message, context), context)
    with call.working():
        return await handler.unary_unary(message, context)


async def _replied(running: Any, context: Context) -> Any:
    """Await a handler; one that yields its replies is written for."""
    if not inspect.isasyncgen(running):
        return await running
    async with contextlib.aclosing(running) as replies:
        async for reply in replies:
            await context.write(reply)
    return None


async def _only_message(messages: CallMessages, call: Call, limit_s: float) -> Any:
    call.rest(limit_s, f'no message of the call came within {limit_s:g} s; send it with the call')
    try:
        return await anext(messages)
    except StopAsyncIteration:
        raise invalid(NO_MESSAGE) from None
