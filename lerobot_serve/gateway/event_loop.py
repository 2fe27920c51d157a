# SPDX-License-Identifier: Apache-2.0
"""
The thread of the event loop: builds gateway and doors in it, runs them, ends them in order.

New requests are refused, running ones answered and the sessions closed; then the doors stop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
import contextlib
from dataclasses import dataclass
import errno
from functools import partial
import threading
import time
from typing import Any

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.doors import Endpoint

IDLE_CHECK_S = 1.0
# of a door that hangs
STOP_LIMIT_S = 2.0
NO_FILES = (
    'no connection can be accepted: this process has too many open files; raise `ulimit -n`, or '
    'lower max_connections of the doors'
)
NO_FILES_PERIOD_S = 10.0


@dataclass(frozen=True, slots=True)
class Running:
    """What runs in the loop."""

    gateway: Gateway
    doors: Sequence[Endpoint]


class GatewayLoop:
    """`run` is the body of the thread; any other thread may call the other methods."""

    def __init__(self, build: Callable[[], Running], stop_limit_s: float) -> None:
        """`build` is called in the loop; it may raise UserError, as may the start of a door."""
        self._build, self._stop_limit_s = build, stop_limit_s
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._started, self._ended = threading.Event(), threading.Event()
        self._error: UserError | None = None
        self._no_files_s = float('-inf')
        self.addresses: tuple[str, ...] = ()

    def wait_until_started(self) -> None:
        """Return once all doors listen. Raises their UserError."""
        self._started.wait()
        if self._error:
            raise self._error

    def stop(self) -> None:
        """Stop doors, drain the gateway, end the thread. May be called twice."""
        self.request_stop()
        self._ended.wait(self._stop_limit_s)

    def request_stop(self) -> None:
        with contextlib.suppress(RuntimeError):
            # the loop has ended already
            self._loop.call_soon_threadsafe(self._stop.set)

    def run(self) -> None:
        """Run until `stop`."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run())
        finally:
            self._started.set()
            self._ended.set()

    async def _run(self) -> None:
        try:
            running = self._build()
        except UserError as error:
            self._error = error
            return
        self._loop.set_exception_handler(partial(self._on_error, running.gateway))
        try:
            for door in running.doors:
                await door.start()
        except UserError as error:
            self._error = error
        else:
            self.addresses = tuple(door.address for door in running.doors)
            self._started.set()
            await self._serve(running.gateway)
        await self._end(running)

    def _on_error(
        self, gateway: Gateway, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        """Say in one line that files are lacking, which asyncio logs for each try."""
        error = context.get('exception')
        if not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)):
            loop.default_exception_handler(context)
            return
        now_s = time.monotonic()
        if now_s - self._no_files_s >= NO_FILES_PERIOD_S:
            self._no_files_s = now_s
            gateway.log.warning(NO_FILES)

    async def _serve(self, gateway: Gateway) -> None:
        while not self._stop.is_set():
            await gateway.close_idle()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), IDLE_CHECK_S)

    async def _end(self, running: Running) -> None:
        # before the connections end, over which the last replies travel
        await running.gateway.drain()
        stops = [asyncio.ensure_future(door.stop()) for door in running.doors]
        if stops:
            _, hanging = await asyncio.wait(stops, timeout=STOP_LIMIT_S)
            for each in hanging:
                each.cancel()
