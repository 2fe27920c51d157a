# SPDX-License-Identifier: Apache-2.0
"""
One websocket of an openpi client: its messages in turn, and the bounds of its silence.

A client sends the next observation after the reply to the last. One that sends more is read no
further than one message ahead. The event loop owns it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial

from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.openpi.frames import (
    close_frame,
    CloseCode,
    frame,
    FrameError,
    FrameReader,
    Opcode,
)

AHEAD = 1
Message = tuple[memoryview, Opcode]


class ConnectionClosed(Exception):
    """The client is gone, or was disconnected."""


class Connection:
    """
    See the module. Its `receiver` calls `free_space`, `on_received` and `feed_eof`; aiohttp calls
    `feed_data` with what it received before.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        writer: asyncio.StreamWriter,
        settings: EndpointSettings,
        on_refused: Callable[[str], object],
        clock: Callable[[], float],
    ) -> None:
        """`on_refused` counts why a client was disconnected, in one word."""
        self._transport, self._writer, self._clock = transport, writer, clock
        self._settings, self._on_refused = settings, on_refused
        limit_bytes = settings.max_message_bytes
        self._reader = FrameReader(limit_bytes, self._on_message, self._on_control)
        self._messages: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._is_over = self._is_paused = self._is_busy = False
        self._last: tuple[CloseCode, str] | None = None
        self._heard_s = self._pinged_s = clock()
        # when the message that arrives has begun
        self._begun_s: float | None = None
        # a picture is larger than what is buffered; nothing is, while a client reads
        transport.set_write_buffer_limits(high=0)

    # from aiohttp

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Read what was received; the return value is that of aiohttp's readers."""
        self._heard_s = self._clock()
        if not self._is_over:
            self._read(partial(self._reader.feed, data))
        return False, b''

    def feed_eof(self) -> None:
        """End: the connection is lost."""
        self._is_over = True
        self._wake.set()

    # from the receiver

    def free_space(self) -> memoryview:
        """Return where the next bytes are to be received."""
        return self._reader.free_space()

    def on_received(self, count: int) -> None:
        """Read the bytes in `free_space`."""
        self._heard_s = self._clock()
        if not self._is_over:
            self._read(partial(self._reader.received, count))

    # from the reader

    def _on_message(self, data: memoryview, opcode: Opcode) -> None:
        self._messages.append((data, opcode))
        self._begun_s = None
        self._wake.set()

    def _on_control(self, data: bytes, opcode: Opcode) -> None:
        if opcode == Opcode.PING and not self._transport.get_write_buffer_size():
            # a client that reads no pongs is sent none
            self._write(frame(Opcode.PONG, data))
        elif opcode == Opcode.CLOSE:
            self.end(CloseCode.NORMAL)

    def _read(self, read: Callable[[], None]) -> None:
        try:
            read()
        except FrameError as error:
            reason = 'too_big' if error.code == CloseCode.TOO_BIG else 'malformed'
            self._on_refused(reason)
            self.end(error.code, str(error))
            return
        if self._begun_s is None and self._reader.is_inside_message:
            self._begun_s = self._heard_s
        if len(self._messages) > AHEAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()

    # for the door

    async def next_message(self) -> Message:
        """Return the next message. Raises ConnectionClosed."""
        while not self._messages:
            if self._is_over:
                raise ConnectionClosed
            self._wake.clear()
            await self._wake.wait()
        message = self._messages.popleft()
        self._is_busy = True
        if self._is_paused and len(self._messages) <= AHEAD:
            self._is_paused, self._begun_s, self._heard_s = False, None, self._clock()
            self._transport.resume_reading()
        return message

    async def send(self, opcode: Opcode, payload: bytes) -> None:
        """Send a message. Raises ConnectionClosed, also for a client that reads nothing."""
        self._write(frame(opcode, payload))
        self._is_busy = False
        if self._transport.get_write_buffer_size():
            await self._drain()
        if self._last and not self._is_over:
            self.end(*self._last)
        if self._is_over:
            raise ConnectionClosed

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._settings.write_timeout_s):
                await self._writer.drain()
        except TimeoutError:
            self.abort('stopped_reading')
        except ConnectionError:
            self.feed_eof()

    def _write(self, data: bytes) -> None:
        if not (self._is_over or self._transport.is_closing()):
            self._transport.write(data)

    def end(self, code: CloseCode, reason: str = '') -> None:
        """Send the close frame as the last one."""
        self._write(close_frame(code, reason))
        self._messages.clear()
        self.feed_eof()

    def end_when_idle(self, code: CloseCode, reason: str) -> None:
        """End now, or after the reply to the message in work."""
        if self._is_busy:
            self._last = code, reason
        else:
            self.end(code, reason)

    async def finish(self) -> None:
        """Close, after what was written is sent, or not within the limit."""
        if self._transport.get_write_buffer_size():
            await self._drain()
        self._transport.close()

    def abort(self, reason: str) -> None:
        """Disconnect at once; counted."""
        self._on_refused(reason)
        self._messages.clear()
        self.feed_eof()
        self._transport.abort()

    def check(self) -> None:
        """Disconnect a client whose message does not end, or that is silent; ask a silent one."""
        now_s, ping_interval_s = self._clock(), self._settings.ping_interval_s
        if self._is_over or self._is_paused:
            return
        if self._begun_s is not None and now_s - self._begun_s > self._settings.read_timeout_s:
            self.abort('slow')
        elif now_s - self._heard_s > 2 * ping_interval_s:
            self.abort('silent')
        elif now_s - max(self._heard_s, self._pinged_s) > ping_interval_s:
            self._pinged_s = now_s
            self._write(frame(Opcode.PING, b''))


class Receiver(asyncio.BufferedProtocol):
    """
    Receives the bytes of a websocket where its messages are put together, without a copy. It takes
    the place of aiohttp's protocol at the transport once the handshake is done, and passes on all
    else to that.
    """

    def __init__(self, sink: Connection, rest: asyncio.Protocol) -> None:
        self._sink, self._rest = sink, rest

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._sink.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        self._sink.on_received(nbytes)

    def eof_received(self) -> bool | None:
        return self._rest.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest.connection_lost(exc)

    def pause_writing(self) -> None:
        self._rest.pause_writing()

    def resume_writing(self) -> None:
        self._rest.resume_writing()
