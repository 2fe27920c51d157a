# SPDX-License-Identifier: Apache-2.0
"""
The places of a server with a thread for each connection. Any thread.

A connection that was not let in keeps none from a new one: when all places are taken, the oldest
of those gives way, whether it says nothing or waits for the reply to a wrong token.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
import socket
import threading


@dataclass(slots=True)
class _Place:
    is_let_in: bool = False
    closed: threading.Event = field(default_factory=threading.Event)


class Places:
    """See the module."""

    def __init__(self, limit: int) -> None:
        self._limit, self._lock = limit, threading.Lock()
        # the oldest first
        self._open: dict[socket.socket, _Place] = {}

    def take(self, connection: socket.socket) -> bool:
        """Return whether a new connection has a place; another one may be closed for it."""
        with self._lock:
            if len(self._open) >= self._limit and not self._close_oldest():
                return False
            self._open[connection] = _Place()
            return True

    def close(self) -> None:
        """Close the connections that were not let in."""
        with self._lock:
            while self._close_oldest():
                pass

    def _close_oldest(self) -> bool:
        for connection, place in self._open.items():
            if not place.is_let_in:
                del self._open[connection]
                place.closed.set()
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                return True
        return False

    def let_in(self, connection: socket.socket) -> None:
        """Keep the place of a connection until its end."""
        with self._lock:
            if place := self._open.get(connection):
                place.is_let_in = True

    def give_back(self, connection: socket.socket) -> None:
        """Note the end of a connection."""
        with self._lock:
            self._open.pop(connection, None)

    def wait_until_closed(self, connection: socket.socket, limit_s: float) -> bool:
        """Return whether a connection gave way within the limit."""
        with self._lock:
            place = self._open.get(connection)
        return place is None or place.closed.wait(limit_s)
