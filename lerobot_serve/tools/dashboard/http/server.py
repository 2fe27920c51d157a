# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: a thread with an event loop, from `start` to `close`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
import ssl
import threading
from typing import Any

from aiohttp import web

from lerobot_serve.access.connections import Connections
from lerobot_serve.errors import UserError

START_LIMIT_S, CLOSE_LIMIT_S = 10.0, 5.0
KEEP_ALIVE_S = 15.0


@dataclass(frozen=True, slots=True)
class Listen:
    """Where the server listens; port 0 takes a free one."""

    address: str
    port: int
    tls: ssl.SSLContext | None = None


class HttpServer:
    """Runs one application. Built, started and closed by one thread."""

    def __init__(
        self,
        application: web.Application,
        listen: Listen,
        connections: Connections,
        on_failure: Callable[[Exception], object],
    ) -> None:
        """`on_failure` is called in the loop's thread when the loop ends with an error."""
        self._application, self._listen = application, listen
        self._connections = connections
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started = threading.Event()
        self._error: OSError | None = None
        self._failure: Exception | None = None
        self._on_failure = on_failure
        self._closers: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name='http', daemon=True)
        self.port = 0

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call `closer` in the loop's thread before the connections are closed."""
        self._closers.append(closer)

    def start(self) -> None:
        """Listen. Raises UserError when the address or the port cannot be used."""
        self._thread.start()
        self._started.wait(START_LIMIT_S)
        if self._failure:
            raise self._failure
        if self._error:
            self._thread.join(CLOSE_LIMIT_S)
            raise UserError(
                f'--port {self._listen.port}: cannot listen on {self._listen.address}: '
                f'{self._error.strerror or self._error}; use another --port, or 0 for a free one'
            )

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Call a function in the loop's thread; any thread, and without effect after `close`."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # the loop is closed
            return

    def close(self) -> None:
        """Close all connections and end the thread."""
        self.call(self._stopping.set)
        self._thread.join(CLOSE_LIMIT_S + 1)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        except Exception as error:
            self._failure = error
            self._on_failure(error)
        finally:
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        runner = web.AppRunner(
            self._application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_LIMIT_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(
                runner,
                self._listen.address,
                self._listen.port,
                ssl_context=self._listen.tls,
            )
            try:
                await site.start()
            except OSError as error:
                self._error = error
                return
            self.port = runner.addresses[0][1]
            assert runner.server
            watch = asyncio.create_task(self._connections.watch(runner.server))
            self._started.set()
            await self._stopping.wait()
            watch.cancel()
            for closer in self._closers:
                closer()
        finally:
            await runner.cleanup()
