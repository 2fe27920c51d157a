# SPDX-License-Identifier: Apache-2.0
"""
Viewers of a dashboard: `python -m benchmarks.dashboard.viewers PORT COUNT SECONDS`. Prints one
JSON object: the bytes of each viewer, and how long each change of a state took to the first one.

One more viewer reads nothing. A process of its own, so that its cost is not the dashboard's.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import sys
import time

from benchmarks.dashboard.fake_robots import MARK

REQUEST = b'GET /api/stream HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n'
MARKED = re.compile(rb'"reason":"' + MARK.encode() + rb'(\d+)"')
PIECE_BYTES, STUCK_BUFFER_BYTES = 1 << 16, 4096


class Viewer:
    """Reads one stream."""

    def __init__(self) -> None:
        self.received_bytes = 0
        self.delays_ms: list[float] = []
        self._last = b''

    async def read(self, port: int) -> None:
        reader, writer = await asyncio.open_connection('127.0.0.1', port)
        writer.write(REQUEST)
        try:
            while piece := await reader.read(PIECE_BYTES):
                now_ns = time.monotonic_ns()
                self.received_bytes += len(piece)
                # a mark may be cut in two; the end of the piece before is short
                for match in MARKED.finditer(self._last[-40:] + piece):
                    self.delays_ms.append((now_ns - int(match[1])) / 1e6)
                self._last = piece
        finally:
            writer.close()


def stuck_viewer(port: int) -> socket.socket:
    """Return a connection that asked for the stream and is never read."""
    stuck = socket.socket()
    stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, STUCK_BUFFER_BYTES)
    stuck.connect(('127.0.0.1', port))
    stuck.sendall(REQUEST)
    return stuck


async def watch(port: int, count: int, seconds: float) -> dict[str, object]:
    """Return what the viewers got after their snapshots."""
    viewers = [Viewer() for _ in range(count)]
    tasks = [asyncio.create_task(viewer.read(port)) for viewer in viewers]
    await asyncio.sleep(2.0)
    before = [viewer.received_bytes for viewer in viewers]
    skipped = [len(viewer.delays_ms) for viewer in viewers]
    begin_s = time.monotonic()
    await asyncio.sleep(seconds)
    passed_s = time.monotonic() - begin_s
    for task in tasks:
        task.cancel()
    return {
        'kb_a_second': [
            (viewer.received_bytes - old) / 1e3 / passed_s
            for viewer, old in zip(viewers, before, strict=True)
        ],
        'delays_ms': [
            delay
            for viewer, first in zip(viewers, skipped, strict=True)
            for delay in viewer.delays_ms[first:]
        ],
    }


def main() -> int:
    port, count, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    with stuck_viewer(port):
        print(json.dumps(asyncio.run(watch(port, count, seconds))))
    return 0


if __name__ == '__main__':
    sys.exit(main())
