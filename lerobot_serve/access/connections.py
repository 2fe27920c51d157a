# SPDX-License-Identifier: Apache-2.0
"""
Bound the connections that ask nothing: aiohttp waits for the head of a first request for ever.

The event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

HEAD_LIMIT_S, CHECK_S = 10.0, 1.0
CONNECTIONS = 256


class Connections:
    """The connections of one server; `closed` counts those that were closed by a bound."""

    def __init__(
        self, limit: int = CONNECTIONS, on_closed: Callable[[], object] = lambda: None
    ) -> None:
        """`limit` is of open connections; `on_closed` is called for each that was closed."""
        self.limit, self._on_closed = limit, on_closed
        self._asked: set[asyncio.BaseProtocol] = set()
        self._since_s: dict[asyncio.BaseProtocol, float] = {}
        self.closed = 0

    def middleware(self) -> Middleware:
        """Return the middleware that notes which connections have asked something."""

        @web.middleware
        async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
            self._asked.add(request.protocol)
            return await handler(request)

        return note

    async def watch(self, server: web.Server) -> None:
        """Close what asks nothing for HEAD_LIMIT_S, and what is above the limit."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.check(server.connections, time.monotonic())

    def check(self, connections: list[web.RequestHandler], now_s: float) -> None:
        """Close the connections that are over a bound at this time."""
        self._since_s = {each: self._since_s.get(each, now_s) for each in connections}
        self._asked &= self._since_s.keys()
        idle = [each for each in connections if each not in self._asked]
        excess = max(0, len(connections) - self.limit)
        late = [each for each in idle if now_s - self._since_s[each] > HEAD_LIMIT_S]
        for connection in {*late, *idle[:excess]}:
            self.note_closed()
            if transport := connection.transport:
                transport.abort()

    def note_closed(self) -> None:
        """Count a connection that a bound closed."""
        self.closed += 1
        self._on_closed()
