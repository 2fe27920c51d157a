# SPDX-License-Identifier: Apache-2.0
"""
Receive the bytes of a websocket where its messages are put together, without a copy.

It takes the place of aiohttp's protocol at the transport once the handshake is done, and passes on
all else to that. The event loop calls.
"""

from __future__ import annotations

import asyncio
from typing import Protocol


class Sink(Protocol):
    """Where bytes are received."""

    def free_space(self) -> memoryview: ...

    def on_received(self, count: int) -> None: ...


class Receiver(asyncio.BufferedProtocol):
    """See the module."""

    def __init__(self, sink: Sink, rest: asyncio.Protocol) -> None:
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
