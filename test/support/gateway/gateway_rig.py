# SPDX-License-Identifier: Apache-2.0
"""A gateway over the fake upstream, for tests of the core and of doors; no ROS, no router."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
import contextlib
import gc
import inspect
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
import pytest

from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.gateway.access import Exposure, open_exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import (
    Prediction,
    PredictionError,
    PredictionRequest,
)
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.doors import Endpoint
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT, FakeSession, FakeUpstream
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.gateway.upstream import UpstreamSession

CALLER = Caller('http', '127.0.0.1:5000', 'arm')
CAMERA = 'observation.images.front'
LIMIT_S = 60.0


def exposure_of(door: str, tls: tuple[str, str, str] | None = None, **changes: Any) -> Exposure:
    """Return an exposure from parameters; `tls` is what `certificate_files` returns."""
    _, certificate, key = tls or ('', '', '')
    given = {'certificate_file': certificate, 'key_file': key, **changes}
    return open_exposure(door, EndpointSettings(**given))


def grpc_channel(address: str, authority: bytes = b'') -> grpc.aio.Channel:
    """Return a connection of its own; with an authority over TLS."""
    options = [('grpc.use_local_subchannel_pool', 1)]
    if not authority:
        return grpc.aio.insecure_channel(address, options)
    credentials = grpc.ssl_channel_credentials(authority)
    return grpc.aio.secure_channel(address, credentials, options)


class RecordingLog:
    """Keeps the lines of a gateway."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    warning = info


class GatewayRig:
    """A gateway, its upstream and its clock. Build it in the event loop."""

    def __init__(self, **settings: Any) -> None:
        self.now_s = 100.0
        self.log = RecordingLog()
        self.upstream = FakeUpstream()
        self.gateway = Gateway(
            self.upstream, GatewayParameters(**settings), self.log, clock=lambda: self.now_s
        )

    async def running_request(self) -> tuple[UpstreamSession, asyncio.Future[Prediction]]:
        """Return a session with a request that is at the upstream, which holds its answers."""
        session = await self.gateway.session(CALLER)
        self.upstream.hold()
        running = asyncio.ensure_future(session.predict(request()))
        await until(lambda: self.upstream.requests)
        return session, running

    def opens_later(self) -> asyncio.Event:
        """Let sessions open once the event is set."""
        may_open, open_now = asyncio.Event(), self.upstream.open

        async def open_later(caller: Caller, terms: OpenSessionRequest | None) -> FakeSession:
            await may_open.wait()
            return await open_now(caller, terms)

        self.upstream.open = open_later
        return may_open


class DoorRig(GatewayRig):
    """A gateway with one door, from `start` to the end of `running`."""

    door: Endpoint

    @property
    def refused(self) -> dict[str, int]:
        """What was refused, by reason."""
        return {reason: n for (_, reason), n in self.gateway.counters.refused.items()}

    @property
    def host_and_port(self) -> tuple[str, int]:
        host, port = self.door.address.rpartition('/')[2].rsplit(':', 1)
        return host, int(port)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        await self.door.start()
        try:
            yield self
        finally:
            async with asyncio.timeout(LIMIT_S):
                await self.close()

    @contextlib.asynccontextmanager
    async def connection(
        self, data: bytes = b''
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Connect, and send these bytes only."""
        reader, writer = await asyncio.open_connection(*self.host_and_port)
        writer.write(data)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def close(self) -> None:
        await self.door.stop()
        await self.gateway.drain()


def rig_tests(make: Callable[..., DoorRig]) -> Callable[..., Any]:
    """
    Return a decorator of async tests with a running rig, which `make` returns for a folder and the
    options of the decorator; a test may ask for `monkeypatch`, too.
    """

    def with_options(**options: Any) -> Callable[..., Any]:
        def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
            takes_patch = 'monkeypatch' in inspect.signature(test).parameters

            async def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
                async with make(tmp_path, **options).running() as rig:
                    await (test(rig, monkeypatch) if takes_patch else test(rig))

            run.__name__ = test.__name__
            return run

        return decorate

    return with_options


def in_loop(test: Callable[[], Any]) -> Any:
    """Run an async test with a limit of time; an exception in a callback of its loop fails it."""
    faults: list[object] = []

    async def limited() -> Any:
        loop = asyncio.get_running_loop()
        # grpc polls on for loops that have ended
        loop.set_exception_handler(
            lambda _, what: 'PollerCompletionQueue' in str(what) or faults.append(what)
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                return await test()
        finally:
            loop.set_exception_handler(None)
            # what gRPC leaves to the collector closes itself in its loop, which must still be open
            gc.collect()
            await asyncio.sleep(0)

    result = asyncio.run(limited())
    assert not faults, faults
    return result


async def refusal(awaitable: Awaitable[object]) -> PredictionError:
    """Return the error of what must be refused."""
    with pytest.raises(PredictionError) as refused:
        await awaitable
    return refused.value


async def until(holds: Callable[[], object]) -> None:
    """Let the loop run until a condition holds; the limit of `in_loop` bounds it."""
    while not holds():
        await asyncio.sleep(0)


def request(**changes: Any) -> PredictionRequest:
    """Return a request that fits the example contract."""
    height, width, channels = EXAMPLE_CONTRACT.cameras[CAMERA]
    given = {
        'state': np.arange(3, dtype=np.float32),
        'images': {CAMERA: np.zeros((height, width, channels), np.uint8)},
    }
    return PredictionRequest(**{**given, **changes})
