# SPDX-License-Identifier: Apache-2.0
"""
The frame of an endpoint over HTTP: its listening site, the bounds of its connections, and whom it
lets in: callers with a token, and no page of a web browser.

A browser sends requests to 127.0.0.1 for every page that asks; such a page has an Origin, and a
host name of its own that resolves to this machine. The event loop calls.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
import ipaddress
import logging
import time
from typing import Any
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from lerobot_serve.access.connections import Connections, ProtocolFactory, TlsHandshakes
from lerobot_serve.access.token_file import WrongTokens
from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import Gateway

BASE_HEADERS = {
    'X-Content-Type-Options': 'nosniff',
    'Cache-Control': 'no-store',
    # versions of this machine are not told
    'Server': 'lerobot_serve',
}
KEEP_ALIVE_S, CLOSE_LIMIT_S, LINGER_S = 75.0, 2.0, 1.0
KEYS_LIMIT = 1024
SCHEMES = ('bearer', 'api-key')
NO_TOKEN = (
    'this door needs a token: send the header "Authorization: Bearer TOKEN" or '
    '"Authorization: Api-Key TOKEN" with a token of its tokens_file'
)
WRONG_TOKEN = 'the token is wrong: compare it with the tokens_file of the door'
FROM_A_PAGE = (
    'requests of web pages are refused (header {header} is {given!r}); send it from a program, '
    'to an address of this machine'
)


class ForbiddenOrigin(Exception):
    """A request that a web page of another site may have caused; the text says what to do."""


class WebEndpoint:
    """Serves one aiohttp application, from `start` to `stop`."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        application: web.Application,
        max_connections: int,
    ) -> None:
        self._gateway, self._exposure = gateway, exposure
        self._on_refused = partial(gateway.on_refused, exposure.door)
        self._connections = Connections(max_connections, self._on_refused)
        self._wrong_tokens = WrongTokens()
        application.middlewares.insert(0, self._connections.middleware())
        application.on_response_prepare.append(self._add_headers)
        # a request ends when its client leaves, and with it its prediction
        self._runner = web.AppRunner(
            application,
            access_log=None,
            logger=_logger(partial(self._on_refused, 'malformed')),
            handle_signals=False,
            handler_cancellation=True,
            keepalive_timeout=KEEP_ALIVE_S,
            shutdown_timeout=CLOSE_LIMIT_S,
            lingering_time=LINGER_S,
        )
        self._watching: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None
        self._port = 0

    @property
    def address(self) -> str:
        """Return the URL; the port is 0 before the start."""
        host = self._exposure.host
        shown = f'[{host}]' if ':' in host else host
        return f'{"https" if self._exposure.tls else "http"}://{shown}:{self._port}'

    def _excess(self, request: web.Request) -> int:
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
        self._port = self._server.sockets[0].getsockname()[1]
        self._watching = [asyncio.create_task(each) for each in self._watches(runner.server)]

    def _watches(self, server: web.Server) -> list[Coroutine[Any, Any, None]]:
        """Return what runs until the end, and bounds the connections."""
        return [self._connections.watch(server)]

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
        watching, self._watching = self._watching, []
        for each in watching:
            each.cancel()
        if watching:
            await asyncio.wait(watching)
        if self._server:
            self._server.close()
        if self._handshakes:
            self._handshakes.close()
        await self._runner.cleanup()

    # whom it lets in

    def _check_origin(self, request: web.Request) -> None:
        """Raise ForbiddenOrigin for a request of a web page; counted."""
        host, origin = request.headers.get('Host', ''), request.headers.get('Origin')
        header, given = '', ''
        if origin is not None and _split(origin).netloc.lower() != host.lower():
            header, given = 'Origin', origin
        elif not self._exposure.needs_token and not self._is_own_host(host):
            header, given = 'Host', host
        if header:
            self._on_refused('web_page')
            raise ForbiddenOrigin(FROM_A_PAGE.format(header=header, given=given[:120]))

    def _is_own_host(self, host: str) -> bool:
        """
        Return whether a Host header is an address, localhost, or the host of the parameter. Where
        no token is needed, another name may be that of a page which resolves to this machine.
        """
        name = _split(f'//{host}').hostname or ''
        if name in ('localhost', self._exposure.host.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            # where everybody is let in, names of this machine are not known
            return not self._exposure.is_loopback
        return True

    async def _name_of(self, request: web.Request) -> str:
        """
        Return the name of the token of a request, empty where no token is needed. Raises
        PredictionError (UNAUTHORIZED), for a wrong token after a while.
        """
        if not self._exposure.needs_token:
            self._connections.let_in(request)
            return ''
        scheme, _, token = request.headers.get('Authorization', '').partition(' ')
        token = token.strip() if scheme.lower() in SCHEMES else ''
        if name := self._exposure.name_of(token):
            self._connections.let_in(request)
            return name
        self._on_refused('unauthorized')
        if token:
            address, now_s = request.remote or '?', time.monotonic()
            self._wrong_tokens.note(address, now_s)
            await asyncio.sleep(self._wrong_tokens.delay_s(address, now_s))
        raise PredictionError(Status.UNAUTHORIZED, WRONG_TOKEN if token else NO_TOKEN)


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


def _split(url: str) -> SplitResult:
    """Return the parts of a URL; none of one that cannot be read, such as http://[::1."""
    try:
        return urlsplit(url)
    except ValueError:
        return SplitResult('', '', '', '', '')


class Once:
    """Whether something is said for the first time; the oldest keys are forgotten."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, None] = OrderedDict()

    def is_first(self, key: str) -> bool:
        """Return true once for each key."""
        if key in self._said:
            return False
        self._said[key] = None
        if len(self._said) > KEYS_LIMIT:
            self._said.popitem(last=False)
        return True
