# SPDX-License-Identifier: Apache-2.0
"""
A server of ZeroMQ's REQ and DEALER sockets, with TLS and bounds that a ROUTER socket has not.

The event loop owns it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from functools import partial
import time

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.core import Gateway, GIVES_WAY_S
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.doors import Endpoint
from lerobot_serve.gateway.groot.connection import ConnectionEnded, Message, ZmtpConnection
from lerobot_serve.gateway.groot.zmtp import ZmtpError
from lerobot_serve.gateway.listener import Listener

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
    since_s        begin of its handshake, then the end of its last request; None while one runs
    """

    connection: ZmtpConnection
    since_s: float | None
    is_greeting: bool = True
    identity: bytes = b''
    callers: set[Caller] = field(default_factory=set)
    running: set[asyncio.Task[None]] = field(default_factory=set)

    def gives_way(self, now_s: float) -> bool:
        """Return whether it greets or rests for long."""
        limit_s = HANDSHAKE_GIVES_WAY_S if self.is_greeting else GIVES_WAY_S
        return self.since_s is not None and self.since_s <= now_s - limit_s


class ZmtpServer(Endpoint):
    """Listens at the address of an exposure, from `start` to `stop`."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: EndpointSettings) -> None:
        if exposure.host == 'localhost':
            # ZeroMQ takes addresses only; a name may have two, and the port 0 two ports
            exposure = replace(exposure, host='127.0.0.1')
        super().__init__(gateway, exposure, settings)
        self._peers: dict[Peer, asyncio.Task[None]] = {}
        self._listener = Listener(
            exposure,
            partial(self._on_refused, 'no_request'),
            limit=settings.max_connections,
            handshake_s=settings.handshake_timeout_s,
        )

    async def _answer(self, peer: Peer, message: Message) -> bytes:
        """Return the reply to a message."""
        raise NotImplementedError

    async def _left(self, peer: Peer) -> None:
        """Free what a peer held that left."""
        raise NotImplementedError

    @property
    def address(self) -> str:
        """The endpoint for a socket; with TLS that of a bridge to it."""
        scheme = 'tls' if self._exposure.tls else 'tcp'
        return f'{scheme}://{self._exposure.shown_host}:{self._listener.port}'

    @property
    def connection_count(self) -> int:
        """How many connections are open; those in a TLS handshake are not."""
        return len(self._peers)

    async def start(self) -> None:
        """Listen. Raises UserError."""
        await self._listener.start(self._protocol)

    def _protocol(self) -> asyncio.Protocol:
        reader = asyncio.StreamReader(limit=READ_BUFFER_BYTES)
        return asyncio.StreamReaderProtocol(reader, self._attend)

    async def stop(self) -> None:
        """End all connections. May be called twice."""
        self._listener.close()
        tasks = list(self._peers.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = Peer(ZmtpConnection(reader, writer, self._settings), time.monotonic())
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
        now_s = time.monotonic()
        giving = [peer for peer in self._peers if peer.gives_way(now_s)]
        if not giving:
            return False
        # bare connections go before those of callers
        oldest = min(giving, key=lambda peer: (not peer.is_greeting, peer.since_s))
        self._on_refused('gave_way')
        self._peers.pop(oldest).cancel()
        return True

    async def _serve(self, peer: Peer) -> None:
        """Serve one connection until it ends."""
        connection = peer.connection
        try:
            peer.identity = await connection.handshake()
            peer.is_greeting, peer.since_s = False, time.monotonic()
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
            await self._left(peer)

    async def _converse(self, peer: Peer) -> None:
        room = asyncio.Semaphore(REQUESTS_OF_CONNECTION)
        while True:
            await room.acquire()
            message = await peer.connection.receive()
            task = asyncio.create_task(self._attend_to(peer, message, room))
            peer.running.add(task)
            peer.since_s = None

    async def _attend_to(self, peer: Peer, message: Message, room: asyncio.Semaphore) -> None:
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
                peer.since_s = time.monotonic()
