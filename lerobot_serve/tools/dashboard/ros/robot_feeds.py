# SPDX-License-Identifier: Apache-2.0
"""
The feeds of the robots whose views are open. The thread `robots` opens, polls and closes them;
the event loop's thread says which are wanted.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
import time

from rclpy.context import Context

from lerobot_serve.tools.dashboard.robot.last_request import LastRequests
from lerobot_serve.tools.dashboard.robot.robot_messages import RobotMessages
from lerobot_serve.tools.dashboard.robot.window import Heard
from lerobot_serve.tools.dashboard.ros.robot_feed import RobotFeed
from lerobot_serve.tools.dashboard.ros.zenoh_feed import ZenohFeed
from lerobot_serve.tools.operate.fleet_state import RobotView

POLL_S = 0.25


class RobotFeeds:
    """`on_heard` is called in the thread `robots` with what was heard of a robot."""

    def __init__(
        self,
        context: Context,
        find: Callable[[str], RobotView | None],
        on_heard: Callable[[str, Heard], None],
        zenoh: ZenohFeed | None,
    ) -> None:
        self._context, self._find, self._on_heard = context, find, on_heard
        self._zenoh = zenoh
        self._wanted: frozenset[str] = frozenset()
        self._open: dict[str, tuple[RobotFeed, RobotMessages]] = {}
        self._opened = 0
        self._wake = threading.Event()

    def want(self, robots: frozenset[str]) -> None:
        """Set the robots whose views are open. The loop's thread."""
        self._wanted = robots
        self._wake.set()

    def requests(self, robot: str) -> LastRequests | None:
        """Return the last requests of a robot; None while its view is closed. Any thread."""
        found = self._open.get(robot)
        return found[1].requests if found else None

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set and `wake` is called."""
        try:
            while not stop.is_set():
                self._follow()
                for robot, (feed, messages) in self._open.items():
                    self._poll(robot, feed, messages)
                # without a viewer it sleeps until there is one
                self._wake.wait(POLL_S if self._open else None)
                self._wake.clear()
        finally:
            self._wanted = frozenset()
            self._follow()

    def wake(self) -> None:
        self._wake.set()

    def _follow(self) -> None:
        """Open and close feeds so that they are the wanted ones."""
        wanted = self._wanted
        for robot in self._open.keys() - wanted:
            feed, messages = self._open.pop(robot)
            feed.close()
            if self._zenoh:
                self._zenoh.remove(messages)
        for robot in wanted - self._open.keys():
            messages = RobotMessages()
            self._opened += 1
            feed = RobotFeed(self._context, robot, self._opened, messages)
            self._open[robot] = feed, messages

    def _poll(self, robot: str, feed: RobotFeed, messages: RobotMessages) -> None:
        now_ms = int(time.monotonic() * 1000)
        view = self._find(robot)
        if view is None:
            return
        client_id, server = view.edge.client_id, view.edge.server
        feed.poll(client_id, server, now_ms)
        if self._zenoh:
            self._zenoh.poll(messages, client_id, server, now_ms)
        heard = messages.take()
        if not heard.is_empty:
            self._on_heard(robot, heard)
