# SPDX-License-Identifier: Apache-2.0
"""
A server of ZeroMQ's REQ and DEALER sockets, with TLS and bounds that a ROUTER socket has not.

The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
import time

from lerobot_serve.access.connections import TlsHandshakes
from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.core import GIVES_WAY_S
from lerobot_serve.gateway.groot.connection import (
    ConnectionEnded,
    GrootSettings,
    Message,
    ZmtpConnection,
)
from lerobot_serve.gateway.groot.zmtp import ZmtpError

# a REQ socket has one request; a DEALER socket may send the next one before its reply
REQUESTS_OF_CONNECTION = 4
READ_BUFFER_BYTES = 1 << 20
# a handshake is one round trip; a longer one gives way
HANDSHAKE_GIVES_WAY_S = 1.0


@dataclass(eq=False, slots=True)
class Peer:
    """
    One connection.

    identity       what its socket calls itself, empty for nothing
    callers        who sent requests over it: one for each token
    rests_since_s  end of its last request; None while one runs, and before its handshake
    greets_since_s begin of its handshake; None after it
    """

    connection: ZmtpConnection
    greets_since_s: float | None
    identity: bytes = b''
    callers: set[Caller] = field(default_factory=set)
    rests_since_s: float | None = None
    running: set[asyncio.Task[None]] = field(default_factory=set)


Answer = Callable[[Peer, Message], Awaitable[bytes]]


class ZmtpServer:
    """Listens at the address of an exposure, from `start` to `stop`."""

    def __init__(
        self,
        exposure: Exposure,
        settings: GrootSettings,
        answer: Answer,
        *,
        on_left: Callable[[Peer], Awaitable[object]],
        on_refused: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`answer` gives the reply to a message; `on_left` is called for each peer that left."""
        self._exposure, self._settings, self._answer = exposure, settings, answer
        self._on_left, self._on_refused, self._clock = on_left, on_refused, clock
        self._peers: dict[Peer, asyncio.Task[None]] = {}
        self._handshakes: TlsHandshakes | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def connection_count(self) -> int:
        """How many connections are open; those in a TLS handshake are not."""
        return len(self._peers)

    async def start(self) -> None:
        """Listen. Raises UserError."""
        exposure, create = self._exposure, self._protocol
        if exposure.tls:
            self._handshakes = TlsHandshakes(
                exposure.tls,
                self._protocol,
                lambda: self._on_refused('no_request'),
                limit=self._settings.max_connections,
                limit_s=self._settings.handshake_timeout_s,
            )
            create = self._handshakes
        # a name may have two addresses, and the port 0 two ports
        host = '127.0.0.1' if exposure.host == 'localhost' else exposure.host
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(create, host, exposure.port)
        except OSError as error:
            raise UserError(
                f'the door {exposure.door} cannot listen on {host} port {exposure.port}: '
                f'{error.strerror or error}; set {exposure.door}.port or {exposure.door}.host'
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def _protocol(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=READ_BUFFER_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._attend)

    async def stop(self) -> None:
        """End all connections. May be called twice."""
        server, self._server = self._server, None
        if server:
            server.close()
        if self._handshakes:
            self._handshakes.close()
        tasks = list(self._peers.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(ZmtpConnection(reader, writer, self._settings), self._clock())
        if len(self._peers) >= self._settings.max_connections and not self._make_room():
            self._on_refused('max_connections')
            peer.connection.abort()
            return
        task = asyncio.create_task(self._serve(peer))
        self._peers[peer] = task

    def _make_room(self) -> bool:
        """
        End the longest handshake, else the connection that rests longest; return false where none
        takes or rests for long.
        """
        now_s = self._clock()
        greeting = {each: each.greets_since_s for each in self._peers}
        resting = {each: each.rests_since_s for each in self._peers}
        # bare connections go before those of callers
        oldest = _oldest(greeting, now_s - HANDSHAKE_GIVES_WAY_S)
        oldest = oldest or _oldest(resting, now_s - GIVES_WAY_S)
        if oldest is None:
            return False
        self._on_refused('gave_way')
        self._peers.pop(oldest).cancel()
        return True

    async def _serve(self, peer: Peer) -> None:
        """Serve one connection until it ends."""
        connection = peer.connection
        try:
            peer.identity = await connection.handshake()
            peer.greets_since_s, peer.rests_since_s = None, self._clock()
            await self._converse(peer)
        except ConnectionEnded as ended:
            if ended.reason:
                self._on_refused(ended.reason)
            connection.abort()
        except ZmtpError as error:
            self._on_refused('malformed')
            await connection.refuse(str(error))
        finally:
            self._peers.pop(peer, None)
            for task in peer.running:
                task.cancel()
            await connection.close()
            await self._on_left(peer)

    async def _converse(self, peer: Peer) -> None:
        room = asyncio.Semaphore(REQUESTS_OF_CONNECTION)
        while True:
            await room.acquire()
            message = await peer.connection.receive()
            task = asyncio.create_task(self._reply(peer, message, room))
            peer.running.add(task)
            peer.rests_since_s = None

    async def _reply(self, peer: Peer, message: Message, room: asyncio.Semaphore) -> None:
        """Answer one message."""
        try:
            reply = await self._answer(peer, message)
            await peer.connection.send(reply, has_empty=message.has_empty)
        except ConnectionEnded as ended:
            if ended.reason:
                self._on_refused(ended.reason)
            peer.connection.abort()
        finally:
            room.release()
            task = asyncio.current_task()
            assert task
            peer.running.discard(task)
            if not peer.running:
                peer.rests_since_s = self._clock()


def _oldest(since_s: dict[Peer, float | None], until_s: float) -> Peer | None:
    """Return the peer with the earliest time, not after `until_s`."""
    found = [(since, peer) for peer, since in since_s.items() if since is not None]
    since, peer = min(found, key=lambda each: each[0], default=(until_s, None))
    return peer if since <= until_s else None
