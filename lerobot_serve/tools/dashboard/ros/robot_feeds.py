# SPDX-License-Identifier: Apache-2.0
"""
What robots do while their views are open: their commands, chunks and requests.

The thread `robots` opens, polls and closes feeds; the event loop's thread says which are wanted.
The requests of all robots of a server share its inbox: a thread of the feed receives them and
keeps those of its robot.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import struct
import threading
import time
from typing import Any

from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from lerobot_serve.contract.cdr import START
from lerobot_serve.contract.data_path.header import HEADER_LAYOUT
from lerobot_serve.contract.names import is_over_zenoh, node_name
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.subscriptions import DedicatedSubscription
from lerobot_serve.tools.dashboard.robot_messages import LastRequests, RobotMessages
from lerobot_serve.tools.dashboard.robot_window import Heard
from lerobot_serve.tools.dashboard.ros.fleet_topics import PolledTopic
from lerobot_serve.tools.dashboard.ros.zenoh_feed import ZenohFeed
from lerobot_serve.tools.operate.fleet_state import RobotView
from lerobot_serve_interfaces.msg import ActionChunk, ExecutedAction, Observation
from lerobot_serve_interfaces.srv import OpenSession

CHUNKS, EVENTS, COMMANDS = 16, 1024, 400
# a viewer slows down no robot: nothing is sent again for it
WATCHER = QoSProfile(
    history=HistoryPolicy.KEEP_LAST,
    depth=CHUNKS,
    reliability=ReliabilityPolicy.BEST_EFFORT,
    durability=DurabilityPolicy.VOLATILE,
)
SESSION_EVENTS = '/open_session/_service_event'
NAME_AT = START + HEADER_LAYOUT.size
LENGTH = struct.Struct('<I')


class RobotFeed:
    """See the module."""

    def __init__(self, context: Context, robot: str, number: int, messages: RobotMessages) -> None:
        self.robot, self._messages = robot, messages
        self._node = SteadyClockNode(
            f'_lerobot_serve_dashboard_{os.getpid()}_robot_{number}',
            context=context,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._commands = PolledTopic(
            self._node, ExecutedAction, f'{robot}/executed_action', qos.EXECUTED_ACTION
        )
        self._chunks: dict[str, PolledTopic] = {}
        self._server = ''
        self._sessions: PolledTopic | None = None
        self._inbox: DedicatedSubscription | None = None
        self._inbox_thread: threading.Thread | None = None
        self._stop_inbox = threading.Event()
        self._find_chunks()

    def _find_chunks(self) -> None:
        """Subscribe to the reply topics of the robot: one for each of its servers."""
        for topic, _ in self._node.get_topic_names_and_types():
            own = f'{self.robot}/action_chunk'
            if topic not in self._chunks and (topic == own or topic.startswith(f'{own}_')):
                self._chunks[topic] = PolledTopic(self._node, ActionChunk, topic, WATCHER)

    def poll(self, client_id: str, server: str, now_ms: int) -> None:
        """Take what has arrived; `client_id` and `server` are those of the robot's state."""
        if server != self._server:
            self._follow(client_id, server)
        for raw in self._commands.take_all(COMMANDS):
            self._messages.on_command(raw, now_ms)
        for topic in self._chunks.values():
            for raw in topic.take_all(CHUNKS):
                self._messages.on_chunk(raw, client_id, now_ms)
        if self._sessions:
            for raw in self._sessions.take_all(EVENTS):
                self._messages.on_session(raw, client_id)

    def _follow(self, client_id: str, server: str) -> None:
        """Listen to the inbox of another server; over Zenoh there is none here."""
        self._leave()
        self._server = server
        if not server or is_over_zenoh(server):
            return
        self._find_chunks()
        node = node_name(server)
        self._sessions = PolledTopic(
            self._node, OpenSession.Event, f'{node}{SESSION_EVENTS}', qos.SERVICE_EVENTS
        )
        keep = only_of(client_id, self._messages.on_request)
        self._inbox = DedicatedSubscription(
            self._node, Observation, f'{node}/observation', WATCHER, keep
        )
        # of a robot that uses the local path
        self._inbox.add(f'{node}/local/observation', WATCHER, keep)
        copies = f'{node}/local/action_chunk'
        if copies not in self._chunks:
            self._chunks[copies] = PolledTopic(self._node, ActionChunk, copies, WATCHER)
        self._stop_inbox = threading.Event()
        self._inbox_thread = threading.Thread(
            target=self._inbox.run, args=(self._stop_inbox,), name='inbox', daemon=True
        )
        self._inbox_thread.start()

    def _leave(self) -> None:
        if self._inbox and self._inbox_thread:
            self._stop_inbox.set()
            self._inbox.wake()
            self._inbox_thread.join()
            self._inbox.close()
        if self._sessions:
            self._sessions.close()
        self._inbox = self._inbox_thread = self._sessions = None

    def close(self) -> None:
        self._leave()
        for topic in (self._commands, *self._chunks.values()):
            topic.close()
        self._node.destroy_node()


def only_of(client_id: str, keep: Callable[[bytes], Any]) -> Callable[[bytes], None]:
    """Return a callback that keeps the requests of one client, read from their first bytes."""
    name = client_id.encode() + b'\0'
    start = LENGTH.pack(len(name)) + name

    def on_request(raw: bytes) -> None:
        if raw.startswith(start, NAME_AT):
            keep(raw)

    return on_request


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
