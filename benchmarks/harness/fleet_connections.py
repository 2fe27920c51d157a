# SPDX-License-Identifier: Apache-2.0
"""
The connections of many robots of one process to a policy server or router, or to several, over
ROS 2 or Zenoh. The main thread opens and closes them, any thread sends, others receive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
import itertools
from typing import Protocol

from msgspec.structs import replace

from benchmarks.harness.client import (
    LIFESPAN_S,
    open_when_ready,
    READY_TIMEOUT_S,
    ZenohConnection,
)
from benchmarks.harness.processes import wait_until
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.links.fake import FakeReplies
from lerobot_serve.links.ros.link import RosLink
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.ros.subscriptions import DedicatedSubscriptions
from lerobot_serve_interfaces.msg import ActionChunk

# of a relay: a server refuses several robots on a topic of another form
REPLIES = '{}/bench/replies/swarm_{}'
# to wait for many topics costs more for each reply than to have a further thread
TOPICS_A_THREAD = 32


class FleetConnections(Protocol):
    """`session_request` is what `open` returned."""

    def open(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        """Open a session, return its request with the reply topic. Raises SessionRefused."""

    def wait_until_matched(self) -> None:
        """Return when all requests and replies are connected. Raises UserError."""

    def send(self, session_request: OpenSessionRequest, raw: bytes) -> None: ...

    def close(self, session_request: OpenSessionRequest) -> None:
        """End a session. Raises ServerUnreachable."""


class RosFleetConnections:
    """One publisher of requests for all robots, and so many reply topics, in turn."""

    def __init__(
        self,
        node: SteadyClockNode,
        runtime: NodeRuntime,
        server: str,
        topics: int,
        on_chunk: Callable[[bytes], None],
    ) -> None:
        self._server = server
        self._topics = tuple(REPLIES.format(server, number) for number in range(topics))
        self._next = itertools.cycle(self._topics)
        self._link = RosLink(node, server, lifespan_s=LIFESPAN_S, for_fleet=True)
        # replies arrive in the lanes
        self._sessions = ServerClient(self._link, FakeReplies())
        self._used: set[str] = set()
        self._lanes: dict[str, DedicatedSubscriptions] = {}
        for first in range(0, topics, TOPICS_A_THREAD):
            deposits = dict.fromkeys(self._topics[first : first + TOPICS_A_THREAD], on_chunk)
            lanes = DedicatedSubscriptions(node, ActionChunk, deposits, qos.ACTION_CHUNK)
            self._lanes |= dict.fromkeys(deposits, lanes)
            runtime.thread('replies', partial(lanes.run, runtime.stop), lanes.wake)

    def open(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        topic = next(self._next)
        mine = replace(session_request, reply_topic=topic)
        open_when_ready(self._sessions, mine)
        self._used.add(topic)
        return mine

    def wait_until_matched(self) -> None:
        wait_until(
            self._is_every_topic_found,
            f'the topics of {self._server} were not found',
            READY_TIMEOUT_S,
        )

    def _is_every_topic_found(self) -> bool:
        found = (self._lanes[topic].publisher_count(topic) for topic in self._used)
        return self._link.is_read() and all(found)

    def send(self, _: OpenSessionRequest, raw: bytes) -> None:
        self._sessions.send(raw)

    def close(self, session_request: OpenSessionRequest) -> None:
        self._sessions.close(session_request, READY_TIMEOUT_S)
        self._used.discard(session_request.reply_topic)


class SpreadFleetConnections:
    """To several routers: each robot asks one of them, in turn."""

    def __init__(self, routers: Sequence[FleetConnections]) -> None:
        self._routers = tuple(routers)

    def _of(self, session_request: OpenSessionRequest) -> FleetConnections:
        return self._routers[session_request.instance % len(self._routers)]

    def open(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        return self._of(session_request).open(session_request)

    def wait_until_matched(self) -> None:
        for router in self._routers:
            router.wait_until_matched()

    def send(self, session_request: OpenSessionRequest, raw: bytes) -> None:
        self._of(session_request).send(session_request, raw)

    def close(self, session_request: OpenSessionRequest) -> None:
        self._of(session_request).close(session_request)


class ZenohFleetConnections:
    """A connection for each robot; threads of Zenoh, or of their local paths, receive."""

    def __init__(
        self,
        endpoint: str,
        server: str,
        on_chunk: Callable[[bytes], None],
        *,
        shared_memory: bool = True,
        uses_local: bool = False,
    ) -> None:
        self._endpoint, self._server, self._on_chunk = endpoint, server, on_chunk
        self._shared_memory, self._uses_local = shared_memory, uses_local
        self._robots: dict[str, ZenohConnection] = {}

    def open(self, session_request: OpenSessionRequest) -> OpenSessionRequest:
        name = session_request.client_id
        robot = ZenohConnection(
            self._endpoint,
            name,
            self._server,
            self._on_chunk,
            shared_memory=self._shared_memory,
            uses_local=self._uses_local,
        )
        self._robots[name] = robot
        mine = robot.session_request_for(session_request)
        open_when_ready(robot.sessions, mine)
        return mine

    def wait_until_matched(self) -> None:
        for robot in self._robots.values():
            robot.wait_until_matched()

    def send(self, session_request: OpenSessionRequest, raw: bytes) -> None:
        self._robots[session_request.client_id].sessions.send(raw)

    def close(self, session_request: OpenSessionRequest) -> None:
        robot = self._robots.pop(session_request.client_id)
        try:
            robot.sessions.close(session_request, READY_TIMEOUT_S)
        finally:
            robot.close()
