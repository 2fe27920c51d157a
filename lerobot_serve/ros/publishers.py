"""Which other edge controllers publish on a topic, from the graph."""

from __future__ import annotations

from collections.abc import Callable
import time

from rclpy.node import Node
from rclpy.publisher import Publisher

Gid = tuple[int, ...]

# by then nodes of one machine have found each other
DISCOVERY_S = 0.5
POLL_S = 0.02
# what every edge controller publishes beside its commands
MARK = 'executed_action'


class Publishers:
    """Of one topic. `own` is the gid of this node's publisher, () while there is none."""

    def __init__(self, node: Node, topic: str) -> None:
        """Find the publishers of `topic`, its full name."""
        self._node, self.topic = node, topic
        self.own: Gid = ()

    def create(self, create: Callable[[], Publisher]) -> Publisher:
        """Return this node's publisher of the topic, built by `create`, and know it as its own."""
        # another process may have the same name
        before = {gid for _, gid in self._found()}
        publisher = create()
        name = self._node.get_fully_qualified_name()
        mine = [gid for who, gid in self._found() if who == name and gid not in before]
        self.own = mine[0] if mine else ()
        return publisher

    def edges(self) -> list[tuple[str, Gid]]:
        """Return full node name and gid of each other edge controller that is found by now."""
        others = [(who, gid) for who, gid in self._found() if gid != self.own]
        return [each for each in others if self._node.count_publishers(f'{each[0]}/{MARK}')]

    def wait_for_edges(self) -> list[tuple[str, Gid]]:
        """Return the same, once others had the time to be found."""
        deadline = time.monotonic() + DISCOVERY_S
        while not (edges := self.edges()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return edges

    def _found(self) -> list[tuple[str, Gid]]:
        return [
            (f'{info.node_namespace.rstrip("/")}/{info.node_name}', tuple(info.endpoint_gid))
            for info in self._node.get_publishers_info_by_topic(self.topic)
        ]
