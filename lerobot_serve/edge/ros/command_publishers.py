# SPDX-License-Identifier: Apache-2.0
"""Finds other edge controllers on a command topic through the ROS graph, with their ticks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import time

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EdgeState

Gid = tuple[int, ...]
# full name of the node, gid of its publisher, and its ticks once they are known
Edge = tuple[str, Gid, int | None]

# discovery time of nodes on one machine
DISCOVERY_S = 0.5
POLL_S = 0.02
# topic that every edge controller publishes beside its commands
EDGE_TOPIC, STATE = 'executed_action', 'state'


class CommandTopicPublishers:
    """Publishers of one topic. `own` is the gid of this node's publisher, () without one."""

    def __init__(self, node: Node, topic: str) -> None:
        """Find the publishers of `topic`, its full name."""
        self._node, self.topic = node, topic
        self.own: Gid = ()
        self._ages: dict[str, int] = {}
        self._states: dict[str, Subscription] = {}

    def create(self, create: Callable[[], Publisher]) -> Publisher:
        """Create this node's publisher of the topic with `create`, and record its gid."""
        # another process may have the same name
        before = {gid for _, gid in self._found()}
        publisher = create()
        name = self._node.get_fully_qualified_name()
        own = [gid for node, gid in self._found() if node == name and gid not in before]
        self.own = own[0] if own else ()
        return publisher

    def edges(self) -> list[Edge]:
        """Return the other edge controllers found so far. Executor thread."""
        others = [(node, gid) for node, gid in self._found() if gid != self.own]
        edges = [each for each in others if self._node.count_publishers(f'{each[0]}/{EDGE_TOPIC}')]
        self._listen_to({node for node, _ in edges})
        return [(node, gid, self._ages.get(node)) for node, gid in edges]

    def _listen_to(self, names: set[str]) -> None:
        """Subscribe to the states of exactly these edges."""
        for name in self._states.keys() - names:
            self._node.destroy_subscription(self._states.pop(name))
            self._ages.pop(name, None)
        for name in names - self._states.keys() - {self._node.get_fully_qualified_name()}:
            self._states[name] = self._node.create_subscription(
                EdgeState, f'{name}/{STATE}', partial(self._on_state, name), qos.STATE
            )

    def _on_state(self, name: str, message: EdgeState) -> None:
        # missed control steps of a stopped process count towards its age
        self._ages[name] = message.control_steps + message.control_steps_missed

    def wait_for_other_edges(self) -> list[Edge]:
        """Return `edges`, after the discovery time."""
        deadline = time.monotonic() + DISCOVERY_S
        while not (edges := self.edges()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return edges

    def _found(self) -> list[tuple[str, Gid]]:
        return [
            (f'{info.node_namespace.rstrip("/")}/{info.node_name}', tuple(info.endpoint_gid))
            for info in self._node.get_publishers_info_by_topic(self.topic)
        ]
