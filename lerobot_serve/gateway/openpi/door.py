# SPDX-License-Identifier: Apache-2.0
"""
The door for openpi's client: each websocket is a caller with a session of its own.

Within a connection, requests are answered in turn; a refusal is a text frame, and the connection
stays open. The event loop of the gateway runs it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Coroutine
import hashlib
import time
from typing import Any, cast

from aiohttp import web
from aiohttp.typedefs import Handler

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.core import Gateway, RETRY_AFTER_S
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.openpi.connection import Connection, ConnectionClosed, Receiver
from lerobot_serve.gateway.openpi.conversation import Conversation
from lerobot_serve.gateway.openpi.frames import CloseCode
from lerobot_serve.gateway.openpi.observation import read_observation_mapping
from lerobot_serve.gateway.web.endpoint import Once, Refused, WebEndpoint

CHECK_S = 0.5
NO_WEBSOCKET = 'no_websocket'
HTTP_STATUS = {Status.UNAUTHORIZED: 401, Status.OVERLOADED: 429, Status.INVALID: 409}
ACCEPT_SALT = b'258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
KEY_BYTES, VERSION = 16, '13'
Clock = Callable[[], float]


class OpenpiDoor(WebEndpoint):
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        settings: EndpointSettings,
        clock: Clock = time.monotonic,
    ) -> None:
        """Raise UserError for a mapping file that cannot be used."""
        application = web.Application(middlewares=[self._bounded()])
        super().__init__(gateway, exposure, settings, application)
        self._clock, self._logged = clock, Once()
        self._mapping = read_observation_mapping(settings.mapping)
        self._open: set[Connection] = set()
        application.router.add_get('/healthz', self._health)
        application.router.add_get('/{path:.*}', self._attend)
        application.on_shutdown.append(self._end_all)

    @property
    def address(self) -> str:
        """Return the URL that a client is given."""
        return super().address.replace('http', 'ws', 1)

    def _watches(self, server: web.Server) -> list[Coroutine[Any, Any, None]]:
        return [*super()._watches(server), self._check_repeatedly()]

    async def _end_all(self, _: web.Application) -> None:
        for connection in list(self._open):
            connection.end_when_idle(CloseCode.GOING_AWAY, 'the gateway ends')

    async def _check_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            self.check_connections()

    def check_connections(self) -> None:
        """Disconnect the clients that are over a bound now."""
        for connection in list(self._open):
            connection.check()

    def _bounded(self) -> Any:
        """Return the middleware that refuses connections above the limit, and ends them."""

        @web.middleware
        async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if count := self._excess(request):
                self._on_refused('max_connections')
                error = self._too_many(count)
                self._log_refusal(request, error)
                return refusal(error)
            return await handler(request)

        return bounded

    def _too_many(self, count: int) -> PredictionError:
        return PredictionError(
            Status.OVERLOADED,
            f'{count} connections are open, max_connections is '
            f'{self._settings.max_connections}; retry when one has left, or raise it',
            RETRY_AFTER_S,
        )

    # routes

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text='OK\n')

    async def _attend(self, request: web.Request) -> web.StreamResponse:
        """Serve one client until it leaves."""
        try:
            self._check_origin(request)
            name = await self._name_of(request)
            response = upgrade_response(request)
            caller = self._caller(request, name)
            conversation = Conversation(self._gateway, caller, self._mapping, self._clock)
            await conversation.begin()
        except Refused as refused:
            self._on_refused(refused.reason)
            headers = {'Upgrade': 'websocket'} if refused.reason == NO_WEBSOCKET else {}
            return web.Response(status=refused.status, text=f'{refused}\n', headers=headers)
        except PredictionError as error:
            self._log_refusal(request, error)
            return refusal(error)
        try:
            await response.prepare(request)
            await self._converse(conversation, self._connect(request))
        finally:
            await self._gateway.release(caller)
        return response

    def _log_refusal(self, request: web.Request, error: PredictionError) -> None:
        """Log why a client is refused, once for each host and kind: it shows a number only."""
        if self._logged.is_first(f'{request.remote} {error.status}'):
            self._gateway.log.warning(
                f'openpi client at {request.remote} is refused: {error.text}'
            )

    def _caller(self, request: web.Request, name: str) -> Caller:
        """Return who this is."""
        peer = request.transport.get_extra_info('peername') if request.transport else None
        host, port, *_ = peer or ('?', 0)
        return Caller(self._exposure.door, f'{host}:{port}', name)

    def _connect(self, request: web.Request) -> Connection:
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            raise ConnectionResetError
        loop = asyncio.get_running_loop()
        writer = asyncio.StreamWriter(transport, request.protocol, None, loop)
        connection = Connection(transport, writer, self._settings, self._on_refused, self._clock)
        # aiohttp names its own reader; it calls these two methods of any
        request.protocol.set_parser(cast(Any, connection))
        transport.set_protocol(Receiver(connection, request.protocol))
        return connection

    async def _converse(self, conversation: Conversation, connection: Connection) -> None:
        self._open.add(connection)
        try:
            await conversation.run(connection)
        except ConnectionClosed:
            # by the client, or by a bound that was counted
            pass
        finally:
            try:
                await connection.finish()
            finally:
                self._open.discard(connection)


def refusal(error: PredictionError) -> web.Response:
    """Return the reply to a handshake that is refused."""
    headers = {'Retry-After': str(max(1, round(error.retry_after_s)))}
    status = HTTP_STATUS.get(error.status, 503)
    if status == 401:
        headers = {'WWW-Authenticate': 'Api-Key'}
    return web.Response(status=status, text=f'{error.status}: {error.text}\n', headers=headers)


def upgrade_response(request: web.Request) -> web.StreamResponse:
    """Return the reply that begins the websocket, without extensions. Raises Refused."""
    headers = request.headers
    if headers.get('Upgrade', '').strip().lower() != 'websocket':
        raise no_websocket('this is the door for openpi clients: open a websocket, ws://HOST:PORT')
    if headers.get('Sec-WebSocket-Version', '') != VERSION:
        raise no_websocket(f'Sec-WebSocket-Version must be {VERSION}')
    key = headers.get('Sec-WebSocket-Key', '')
    if not _is_key(key):
        raise no_websocket(f'Sec-WebSocket-Key must be {KEY_BYTES} bytes in base64')
    digest = hashlib.sha1(key.encode() + ACCEPT_SALT).digest()
    accept = base64.b64encode(digest).decode()
    return web.StreamResponse(
        status=101,
        headers={'Upgrade': 'websocket', 'Connection': 'Upgrade', 'Sec-WebSocket-Accept': accept},
    )


def no_websocket(text: str) -> Refused:
    return Refused(426, NO_WEBSOCKET, text)


def _is_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == KEY_BYTES
    except (binascii.Error, ValueError):
        return False
