# SPDX-License-Identifier: Apache-2.0
"""
Bound the connections of a server: those that ask nothing, and their number.

aiohttp waits for the head of a first request for ever, and bounds no number. The event loop's
thread.

Bound the connections whose TLS handshake is not done: a server does not see them before.

asyncio alone lets each wait for 60 s, any number at the same time, and counts none. The event
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
import ssl
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEAD_LIMIT_S, CHECK_S = 10.0, 1.0
CONNECTIONS = 256


class Connections:
    """The connections of one server; `closed` counts those that were closed by a bound."""

    def __init__(
        self, limit: int = CONNECTIONS, on_closed: Callable[[str], object] = lambda reason: None
    ) -> None:
        """
        `limit` is of open connections; `on_closed` is called for each that was closed, with
        `no_request` or `gave_way`.
        """
        self.limit, self._on_closed = limit, on_closed
        self._asked: set[web.RequestHandler] = set()
        self._since_s: dict[web.RequestHandler, float] = {}
        # those of callers that were let in, for whether a request runs; the one that rests
        # longest is the first that rests
        self._let_in: dict[web.RequestHandler, bool] = {}
        self.closed = 0

    def middleware(self) -> Middleware:
        """Return the middleware that notes which connections have asked something."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            connection = request.protocol
            self._asked.add(connection)
            self._note_request(connection, runs=True)
            try:
                return await handler(request)
            finally:
                self._note_request(connection, runs=False)

        return note

    def let_in(self, request: web.Request) -> None:
        """Note that the caller of a connection is let in: it keeps its place while it asks."""
        self._let_in[request.protocol] = True

    def is_let_in(self, request: web.Request) -> bool:
        """Return whether the caller of a connection was let in."""
        return request.protocol in self._let_in

    def _note_request(self, connection: web.RequestHandler, *, runs: bool) -> None:
        if self._let_in.pop(connection, None) is not None:
            self._let_in[connection] = runs

    async def watch(self, server: web.Server) -> None:
        """Close what asks nothing for HEAD_LIMIT_S, and what is above the limit."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check(server.connections, time.monotonic())

    def check(self, connections: list[web.RequestHandler], now_s: float) -> None:
        """Close the connections that are over a bound at this time."""
        self._since_s = {each: self._since_s.get(each, now_s) for each in connections}
        self._asked &= self._since_s.keys()
        self._let_in = {each: runs for each, runs in self._let_in.items() if each in self._since_s}
        idle = [each for each in connections if each not in self._asked]
        excess = max(0, len(connections) - self.limit)
        late = [each for each in idle if now_s - self._since_s[each] > HEAD_LIMIT_S]
        for connection in {*late, *idle[:excess]}:
            self._close(connection, 'no_request')

    def make_room(self, connections: list[web.RequestHandler], asks: web.RequestHandler) -> int:
        """
        Return how many connections are open, after those above the limit gave way to the one that
        asks: first those of callers that were not let in, then those that rest longest.
        """
        if len(connections) <= self.limit:
            return len(connections)
        is_open = {each: None for each in connections if not is_closing(each)}
        excess = max(0, len(is_open) - self.limit)
        giving = [each for each in self._that_give_way(is_open) if each is not asks][:excess]
        for connection in giving:
            self._close(connection, 'gave_way')
        return len(is_open) - len(giving)

    def _that_give_way(
        self, connections: dict[web.RequestHandler, None]
    ) -> Iterator[web.RequestHandler]:
        """Yield the connections that may give way, the first one first."""
        # the oldest first: a connection that has just begun can still say who it is
        yield from (each for each in connections if each not in self._let_in)
        yield from (
            each for each, runs in self._let_in.items() if not runs and each in connections
        )

    def _close(self, connection: web.RequestHandler, reason: str) -> None:
        self.note_closed(reason)
        if transport := connection.transport:
            transport.abort()

    def note_closed(self, reason: str = 'no_request') -> None:
        """Count a connection that a bound closed."""
        self.closed += 1
        self._on_closed(reason)


def is_closing(connection: web.RequestHandler) -> bool:
    """Return whether a connection ends already, though its server still has it."""
    return connection.transport is None or connection.transport.is_closing()


HANDSHAKE_LIMIT_S = 10.0
ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class TlsHandshakes:
    """Creates the protocols of a listening socket, each behind its TLS handshake."""

    def __init__(
        self,
        context: ssl.SSLContext,
        create: ProtocolFactory,
        on_closed: Callable[[], object],
        *,
        limit: int,
        limit_s: float | None = None,
    ) -> None:
        """
        `limit` is of handshakes at the same time, `limit_s` of each (HANDSHAKE_LIMIT_S); one above
        the limit ends the oldest, so that a host that holds all places keeps no other out.
        `on_closed` is called for each connection that ends without a handshake.
        """
        self._context, self._create, self._on_closed = context, create, on_closed
        self._limit, self._limit_s = limit, limit_s
        # the oldest first
        self._running: dict[asyncio.Task[None], asyncio.Transport] = {}

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of an accepted connection."""
        return _Accepted(self._begin)

    def close(self) -> None:
        """End the handshakes that run."""
        for task in self._running:
            task.cancel()

    def _begin(self, transport: asyncio.Transport) -> None:
        if len(self._running) >= self._limit:
            self._end_oldest()
        task = asyncio.get_running_loop().create_task(self._shake_hands(transport))
        self._running[task] = transport
        task.add_done_callback(lambda done: self._running.pop(done, None))

    def _end_oldest(self) -> None:
        task = next(iter(self._running))
        # its place is free now, its task ends later
        transport = self._running.pop(task)
        self._on_closed()
        task.cancel()
        transport.abort()

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop, early = asyncio.get_running_loop(), _Early()
        try:
            secure = await loop.start_tls(
                transport,
                early,
                self._context,
                server_side=True,
                ssl_handshake_timeout=self._limit_s or HANDSHAKE_LIMIT_S,
            )
        except OSError:
            secure = None
        if secure is None or early.is_lost:
            self._on_closed()
            transport.abort()
            return
        protocol = self._create()
        secure.set_protocol(protocol)
        protocol.connection_made(secure)
        early.pass_on(secure, protocol)


class _Accepted(asyncio.Protocol):
    """Hands over a connection before it is read."""

    def __init__(self, begin: Callable[[asyncio.Transport], None]) -> None:
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        self._begin(transport)


class _Early(asyncio.Protocol):
    """Keeps what arrives with the end of the handshake."""

    def __init__(self) -> None:
        self._received: list[bytes] = []
        self._has_ended = self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self._received.append(data)

    def eof_received(self) -> None:
        self._has_ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True

    def pass_on(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        """Give the protocol of the connection what it missed."""
        assert isinstance(protocol, asyncio.Protocol)
        for data in self._received:
            protocol.data_received(data)
        if self._has_ended and not protocol.eof_received():
            transport.close()
