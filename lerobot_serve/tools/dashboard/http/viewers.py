# SPDX-License-Identifier: Apache-2.0
"""
The viewers of a stream of events: each change is serialised once and queued for all. The stream of
a single robot is open while it has viewers. The event loop's thread.

A viewer that reads slowly loses its queue and gets a snapshot when it reads again; one that reads
nothing for WRITE_LIMIT_S is disconnected. No viewer waits for another.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import json
import socket
from typing import Any

from aiohttp import web

from lerobot_serve.tools.dashboard.document.fleet_document import Json
from lerobot_serve.tools.dashboard.http.guards import Refused
from lerobot_serve.tools.dashboard.robot_window import Heard, RobotWindow

QUEUE_EVENTS, QUEUE_BYTES, SEND_BUFFER_BYTES = 25, 1 << 20, 1 << 17
WRITE_LIMIT_S = 30.0
# closes the connection of a page that asks again after it
RETRY = b'retry: 1000\n\n'


@dataclass(slots=True)
class StreamCounts:
    """What happened to viewers since start."""

    opened: int = 0
    refused: int = 0
    behind: int = 0
    disconnected: int = 0


def event_bytes(event: str, data: Any) -> bytes:
    """Return one event; its data is one line of JSON."""
    text = json.dumps(data, separators=(',', ':'), ensure_ascii=True, allow_nan=False)
    return f'event: {event}\ndata: {text}\n\n'.encode()


class Viewer:
    """One connection; the queue of what it has not been sent yet."""

    def __init__(self, snapshot: Callable[[], bytes], counts: StreamCounts) -> None:
        self._snapshot, self._counts = snapshot, counts
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._wants_snapshot, self._is_over = True, False
        self._wake = asyncio.Event()

    def put(self, event: bytes) -> None:
        """Queue an event, or a snapshot in place of too many."""
        if self._wants_snapshot:
            return
        self._queue.append(event)
        self._queued_bytes += len(event)
        if len(self._queue) > QUEUE_EVENTS or self._queued_bytes > QUEUE_BYTES:
            self._clear()
            self._wants_snapshot = True
            self._counts.behind += 1
        self._wake.set()

    def end(self) -> None:
        """Let `run` return."""
        self._is_over = True
        self._wake.set()

    def _clear(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0

    def _take(self) -> bytes:
        if self._wants_snapshot:
            self._wants_snapshot = False
            return self._snapshot()
        taken = b''.join(self._queue)
        self._clear()
        return taken

    async def run(self, response: web.StreamResponse, transport: asyncio.Transport) -> None:
        """Send until the viewer leaves or `end` is called."""
        try:
            await response.write(RETRY)
            while not self._is_over:
                self._wake.clear()
                if part := self._take():
                    await asyncio.wait_for(response.write(part), WRITE_LIMIT_S)
                else:
                    await self._wake.wait()
        except TimeoutError:
            self._counts.disconnected += 1
            transport.abort()
        except (ConnectionError, OSError):
            pass


class Stream:
    """All viewers of one document."""

    def __init__(self, document: Callable[[], Any]) -> None:
        """`document` returns the whole as of the last event that was published."""
        self._document = document
        self._cached: bytes | None = None
        self._viewers: set[Viewer] = set()
        self.counts = StreamCounts()

    @property
    def viewer_count(self) -> int:
        return len(self._viewers)

    def publish(self, event: str, data: Any) -> None:
        """Send an event to all viewers."""
        self._cached = None
        if not self._viewers:
            return
        part = event_bytes(event, data)
        for viewer in self._viewers:
            viewer.put(part)

    def snapshot_bytes(self) -> bytes:
        """Return the newest snapshot, serialised once."""
        if self._cached is None:
            self._cached = event_bytes('snapshot', self._document())
        return self._cached

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Send the document and its patches until the viewer leaves."""
        response = web.StreamResponse(headers={'Content-Type': 'text/event-stream'})
        await response.prepare(request)
        transport = request.transport
        if not isinstance(transport, asyncio.Transport):
            return response
        if found := transport.get_extra_info('socket'):
            # the system would keep megabytes for a viewer that reads nothing
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        viewer = Viewer(self.snapshot_bytes, self.counts)
        self._viewers.add(viewer)
        self.counts.opened += 1
        try:
            await viewer.run(response, transport)
        finally:
            self._viewers.discard(viewer)
        return response

    def end(self) -> None:
        """End all viewers."""
        for viewer in self._viewers:
            viewer.end()


ROBOTS = 8


class _RobotStream:
    """One robot with viewers."""

    def __init__(self, robot: str, state: Json | None) -> None:
        self.window, self.state = RobotWindow(robot), state
        self.stream = Stream(lambda: self.window.snapshot(self.state))
        # viewers that are there or come
        self.count = 0

    def add(self, new: Json, state: Json | None) -> None:
        if state is not self.state:
            self.state = state
            new = {**new, 'state': state}
        if new:
            self.stream.publish('append', new)


class RobotStreams:
    """`row` returns the row of a robot; `want` is called with the robots that have viewers."""

    def __init__(
        self, row: Callable[[str], Json | None], want: Callable[[frozenset[str]], None]
    ) -> None:
        self._row, self._want = row, want
        self._open: dict[str, _RobotStream] = {}

    @property
    def viewer_count(self) -> int:
        return sum(each.count for each in self._open.values())

    async def serve(self, request: web.Request, robot: str) -> web.StreamResponse:
        """Send the window of a robot until the viewer leaves. Raises Refused."""
        state = self._row(robot)
        if state is None:
            raise Refused(404, f'no robot {robot[:80]!r} is heard of; see /api/stream')
        if robot not in self._open and len(self._open) >= ROBOTS:
            raise Refused(
                503, f'{ROBOTS} robots are looked at, which is the limit; close the view of one'
            )
        found = self._open.setdefault(robot, _RobotStream(robot, state))
        found.count += 1
        self._want(frozenset(self._open))
        try:
            return await found.stream.serve(request)
        finally:
            found.count -= 1
            if not found.count:
                del self._open[robot]
                self._want(frozenset(self._open))

    def on_heard(self, robot: str, heard: Heard) -> None:
        """Send what was heard of a robot to its viewers."""
        if found := self._open.get(robot):
            found.add(found.window.add(heard), self._row(robot))

    def on_document(self) -> None:
        """Send the rows that changed."""
        for robot, found in self._open.items():
            found.add({}, self._row(robot))

    def end(self) -> None:
        for each in self._open.values():
            each.stream.end()
