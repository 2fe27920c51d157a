# SPDX-License-Identifier: Apache-2.0
"""The listening site of a door over HTTP. The event loop calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import contextlib
import logging

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from lerobot_serve.access.connections import Connections
from lerobot_serve.access.half_open import ProtocolFactory, TlsHandshakes
from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure

BASE_HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Cache-Control': 'no-store',
    # versions of this machine are not told
    'Server': 'lerobot_serve',
}
KEEP_ALIVE_S, CLOSE_LIMIT_S, LINGER_S = 75.0, 2.0, 1.0


class Site:
    """Serves one aiohttp application, from `start` to `stop`."""

    def __init__(
        self,
        exposure: Exposure,
        application: web.Application,
        connections: Connections,
        on_malformed: Callable[[], object] = lambda: None,
    ) -> None:
        """`on_malformed` is called for each request that is not HTTP."""
        self._exposure, self._connections = exposure, connections
        application.on_response_prepare.append(self._add_headers)
        # a request ends when its client leaves, and with it its prediction
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_logger(on_malformed),
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_LIMIT_S,
            lingering_time=LINGER_S,
        )
        self._watch: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None
        self.port = 0

    @property
    def address(self) -> str:
        """Return the URL; the port is 0 before the start."""
        host = self._exposure.host
        shown = f'[{host}]' if ':' in host else host
        return f'{"https" if self._exposure.tls else "http"}://{shown}:{self.port}'

    def excess(self, request: web.Request) -> int:
        """
        Return how many connections are open where this one has no place among them, 0 where it
        has one; others may have given way to it.
        """
        bounds, server = self._connections, self._runner.server
        if server is None or bounds.is_let_in(request):
            return 0
        count = bounds.make_room(server.connections, request.protocol)
        return count if count > bounds.limit else 0

    async def _add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(BASE_HEADERS)
        if not self._connections.is_let_in(request):
            # who shows no token keeps no place; the head is known to aiohttp already
            response.force_close()
            response.headers['Connection'] = 'close'

    async def start(self) -> None:
        """Listen. Raises UserError for an address that cannot be used."""
        exposure, runner = self._exposure, self._runner
        await runner.setup()
        assert runner.server
        loop = asyncio.get_running_loop()
        try:
            # not a site of aiohttp, which waits 60 s for each TLS handshake and counts none
            self._server = await loop.create_server(
                self._protocols(runner.server), exposure.host, exposure.port
            )
        except OSError as error:
            await runner.cleanup()
            raise UserError(
                f'{exposure.door}.port: cannot listen on {exposure.host}:{exposure.port} '
                f'({error.strerror or error}); set {exposure.door}.port to a free one, or to 0'
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        self._watch = asyncio.create_task(self._connections.watch(runner.server))

    def _protocols(self, create: ProtocolFactory) -> ProtocolFactory:
        """Return what creates the protocols of connections, behind TLS where it is set."""
        if self._exposure.tls is None:
            return create
        bounds = self._connections
        self._handshakes = TlsHandshakes(
            self._exposure.tls, create, bounds.note_closed, limit=bounds.limit
        )
        return self._handshakes

    async def stop(self) -> None:
        """Close the site and its connections. May be called twice."""
        watch, self._watch = self._watch, None
        if watch:
            watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watch
        if self._server:
            self._server.close()
        if self._handshakes:
            self._handshakes.close()
        await self._runner.cleanup()


def _logger(on_malformed: Callable[[], object]) -> logging.Logger:
    """Return a logger of errors of this package; anybody may send what is not HTTP."""

    def is_shown(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            on_malformed()
            return False
        return True

    # one for each site, without a name that others would get
    logger = logging.Logger('lerobot_serve.gateway.web')
    logger.parent = logging.getLogger('aiohttp.server')
    logger.addFilter(is_shown)
    return logger
