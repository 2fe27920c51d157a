# SPDX-License-Identifier: Apache-2.0
"""
Bound the connections whose TLS handshake is not done: a server does not see them before.

asyncio alone lets each wait for 60 s, any number at the same time, and counts none. The event
loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import ssl

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
