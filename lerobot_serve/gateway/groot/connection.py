# SPDX-License-Identifier: Apache-2.0
"""
One connection of a ZeroMQ socket: its handshake, its messages with their bounds, its replies.

The event loop owns it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
import struct

from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.groot import zmtp
from lerobot_serve.gateway.groot.zmtp import Flag, ZmtpError

# of pings on idle connections; three unanswered ones end one
HEARTBEAT_INTERVAL_S, UNANSWERED_PINGS = 5.0, 3
# a REQ socket sends an empty frame and the body
MAX_PARTS = 8
SHORT, LONG = struct.Struct('>B'), struct.Struct('>Q')
END_LIMIT_S = 0.2


class ConnectionEnded(Exception):
    """The connection has to end; `reason` is one word to count, empty for a client that left."""

    def __init__(self, reason: str = '') -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Message:
    """
    body         the last frame
    has_empty    an empty frame came before it, as a REQ socket sends it
    is_request   nothing else came before it
    """

    body: bytes
    has_empty: bool
    is_request: bool


class ZmtpConnection:
    """See the module. `handshake` comes first, then `receive` and `send`."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        settings: EndpointSettings,
    ) -> None:
        self._reader, self._writer, self._settings = reader, writer, settings
        self._writing = asyncio.Lock()
        # so that a write ends when the system has taken all of it
        writer.transport.set_write_buffer_limits(high=0)
        peer = writer.get_extra_info('peername') or ('?', 0)
        self.host, self.port = str(peer[0]), int(peer[1])

    async def handshake(self) -> bytes:
        """Return the identity of the peer. Raises ConnectionEnded and ZmtpError."""
        try:
            async with asyncio.timeout(self._settings.handshake_timeout_s):
                self._writer.write(zmtp.greeting())
                zmtp.check_greeting(await self._reader.readexactly(zmtp.GREETING_BYTES))
                self._writer.write(zmtp.ready())
                (first,) = await self._reader.readexactly(1)
                name, body = zmtp.split_command(await self._read_command(first))
                if name != zmtp.READY:
                    raise ZmtpError(f'its first command is {name[:20]!r}, not READY')
                return zmtp.read_ready(body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            raise ConnectionEnded('no_request') from None

    async def refuse(self, reason: str) -> None:
        """Say why the peer is not served; it may be gone."""
        try:
            async with asyncio.timeout(END_LIMIT_S):
                await self._write(zmtp.error(reason))
        except (OSError, TimeoutError):
            pass

    async def receive(self) -> Message:
        """Return the next message. Raises ConnectionEnded and ZmtpError."""
        try:
            while True:
                first = await self._first_byte()
                async with asyncio.timeout(self._settings.read_timeout_s):
                    if first & Flag.COMMAND:
                        await self._on_command(await self._read_command(first))
                    else:
                        return await self._read_message(first)
        except TimeoutError:
            raise ConnectionEnded('slow') from None
        except (OSError, asyncio.IncompleteReadError):
            raise ConnectionEnded from None

    async def _first_byte(self) -> int:
        """Await the flags of a frame; ping a peer that is silent. Raises ConnectionEnded."""
        for unanswered in range(UNANSWERED_PINGS + 1):
            try:
                async with asyncio.timeout(HEARTBEAT_INTERVAL_S):
                    return (await self._reader.readexactly(1))[0]
            except TimeoutError:
                if unanswered < UNANSWERED_PINGS:
                    await self._send(zmtp.command(zmtp.PING, bytes(2)))
        raise ConnectionEnded('silent')

    async def _read_message(self, flags: int) -> Message:
        room, body = self._settings.max_message_bytes, b''
        sizes: list[int] = []
        while True:
            size = await self._size(flags)
            room -= size
            if room < 0 or len(sizes) == MAX_PARTS:
                raise ConnectionEnded('too_big')
            sizes.append(size)
            # only the last part counts
            body = await self._reader.readexactly(size)
            if not flags & Flag.MORE:
                break
            flags = await self._next_flags()
        before = sizes[:-1]
        return Message(body, before == [0], before in ([], [0]))

    async def _next_flags(self) -> int:
        """Return the flags of a further frame; commands may come between. Raises ZmtpError."""
        while True:
            (flags,) = await self._reader.readexactly(1)
            if not flags & Flag.COMMAND:
                return flags
            await self._on_command(await self._read_command(flags))

    async def _size(self, flags: int) -> int:
        if flags & ~(Flag.MORE | Flag.LONG | Flag.COMMAND):
            raise ZmtpError('a frame has unknown flags')
        form = LONG if flags & Flag.LONG else SHORT
        (size,) = form.unpack(await self._reader.readexactly(form.size))
        return int(size)

    async def _read_command(self, flags: int) -> bytes:
        if not flags & Flag.COMMAND or flags & Flag.MORE:
            raise ZmtpError('a command is expected')
        size = await self._size(flags)
        if size > zmtp.COMMAND_BYTES:
            raise ZmtpError(f'a command has {size} bytes')
        return await self._reader.readexactly(size)

    async def _on_command(self, data: bytes) -> None:
        name, body = zmtp.split_command(data)
        if name == zmtp.PING:
            await self._send(zmtp.pong(body))
        elif name == zmtp.ERROR:
            raise ConnectionEnded

    async def send(self, body: bytes, *, has_empty: bool) -> None:
        """Send a message. Raises ConnectionEnded, also for a peer that does not read it."""
        empty = zmtp.frame(b'', Flag.MORE) if has_empty else b''
        await self._send(empty + zmtp.frame(body))

    async def _send(self, data: bytes) -> None:
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await self._write(data)
        except TimeoutError:
            raise ConnectionEnded('stopped_reading') from None
        except OSError:
            raise ConnectionEnded from None

    async def _write(self, data: bytes) -> None:
        async with self._writing:
            self._writer.write(data)
            await self._writer.drain()

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close once the last reply is sent, or at once where the peer does not read it."""
        self._writer.close()
        try:
            async with asyncio.timeout(END_LIMIT_S):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self.abort()
