# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: a thread with an event loop, from `start` to `close`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import ssl
import threading
from typing import Any

from aiohttp import web

from lerobot_serve.errors import UserError
from lerobot_serve.tools.dashboard.http.application import Application

START_LIMIT_S, CLOSE_LIMIT_S = 10.0, 5.0
KEEP_ALIVE_S = 15.0


class HttpServer:
    """Runs one application. Built, started and closed by one thread."""

    def __init__(
        self,
        application: Application,
        address: str,
        port: int,
        on_failure: Callable[[Exception], object],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """
        Port 0 takes a free one. `on_failure` is called in the loop's thread when the loop ends
        with an error.
        """
        self._application, self._tls = application, tls
        self._address, self.port = address, port
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._started = threading.Event()
        self._error: OSError | None = None
        self._failure: Exception | None = None
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name='http', daemon=True)

    def start(self) -> None:
        """Listen. Raises UserError when the address or the port cannot be used."""
        self._thread.start()
        self._started.wait(START_LIMIT_S)
        if self._failure:
            raise self._failure
        if self._error:
            self._thread.join(CLOSE_LIMIT_S)
            raise UserError(
                f'--port {self.port}: cannot listen on {self._address}: '
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
        """End the application, close all connections and end the thread."""
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
            self._application.web,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_LIMIT_S,
        )
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._address, self.port, ssl_context=self._tls)
            try:
                await site.start()
            except OSError as error:
                self._error = error
                return
            self.port = runner.addresses[0][1]
            assert runner.server
            connections = self._application.connections
            watch = asyncio.create_task(connections.watch(runner.server))
            self._started.set()
            await self._stopping.wait()
            watch.cancel()
            self._application.end()
        finally:
            await runner.cleanup()
