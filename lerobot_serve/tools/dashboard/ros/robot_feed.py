# SPDX-License-Identifier: Apache-2.0
"""
What one robot does, while its view is open: its commands, its chunks and its requests.

The thread `robots` opens, polls and closes a feed. The requests of all robots of a server share
its inbox: a thread of the feed receives them and keeps those of this robot.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import struct
import threading
from typing import Any

from rclpy.context import Context
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy

from lerobot_serve.contract.cdr import START
from lerobot_serve.contract.data_path.header import HEADER_LAYOUT
from lerobot_serve.contract.names import is_over_zenoh, node_name
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.subscriptions import DedicatedSubscription
from lerobot_serve.tools.dashboard.robot.robot_messages import RobotMessages
from lerobot_serve.tools.dashboard.ros.newest_messages import PolledTopic
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
