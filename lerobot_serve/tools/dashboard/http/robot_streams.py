# SPDX-License-Identifier: Apache-2.0
"""
The streams of single robots: one is open while it has viewers. The event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from lerobot_serve.tools.dashboard.access import Refused
from lerobot_serve.tools.dashboard.document.merge_patch import Json
from lerobot_serve.tools.dashboard.http.viewers import Stream
from lerobot_serve.tools.dashboard.robot.window import Heard, RobotWindow

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
