# SPDX-License-Identifier: Apache-2.0
"""A peer of the door groot that writes ZeroMQ's bytes itself, and a bridge from plain to TLS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
import ssl
import struct

GREETING = b'\xff' + bytes(8) + b'\x7f' + b'\x03\x01' + b'NULL' + bytes(48)
MORE, LONG, COMMAND = 1, 2, 4


def frame(data: bytes, flags: int = 0) -> bytes:
    return struct.pack('>BQ', flags | LONG, len(data)) + data


def ready(kind: bytes = b'DEALER') -> bytes:
    named = b'\x0bSocket-Type' + struct.pack('>I', len(kind)) + kind
    return frame(b'\x05READY' + named, COMMAND)


class ZmtpPeer:
    """Used in the event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def greet(self, kind: bytes = b'DEALER') -> ZmtpPeer:
        """Shake hands, and read what the door says."""
        self.writer.write(GREETING + ready(kind))
        assert (await self.reader.readexactly(64))[:12] == GREETING[:12]
        assert b'ROUTER' in await self.receive()
        return self

    async def receive(self) -> bytes:
        """Return the content of the next frame, also of a command."""
        (flags,) = await self.reader.readexactly(1)
        form = struct.Struct('>Q' if flags & LONG else '>B')
        (size,) = form.unpack(await self.reader.readexactly(form.size))
        return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Read until the end."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(1 << 16):
                pass
        return True


@contextlib.asynccontextmanager
async def zmtp_peer(address: str) -> AsyncIterator[ZmtpPeer]:
    host, port = address.rpartition('/')[2].rsplit(':', 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield ZmtpPeer(reader, writer)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def tls_bridge(address: str, authority_file: str) -> AsyncIterator[str]:
    """Do what stunnel does for a client without TLS; give the endpoint for its socket."""
    context = ssl.create_default_context(cafile=authority_file)
    host, port = address.rpartition('/')[2].rsplit(':', 1)
    copies: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def attend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(host, int(port), ssl=context)
        for pair in ((reader, there[1]), (there[0], writer)):
            copies.add(asyncio.create_task(copy(*pair)))

    server = await asyncio.start_server(attend, '127.0.0.1', 0)
    try:
        yield f'tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}'
    finally:
        server.close()
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)
