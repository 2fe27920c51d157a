# SPDX-License-Identifier: Apache-2.0
"""
Find the nodes that publish a state, by the graph of a node, and hold their newest latched states,
by its subscriptions. The thread of a client watches and waits; the executor thread deposits.

A new node discovers the others one after the other: after the first router a second one may appear
up to half a second later. Nodes that were found before end the wait as soon as they are there.
Every wait for a state has a limit and ends with the message that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
import threading
import time
from typing import Any, NamedTuple, TypeVar

from rclpy.node import Node
from rclpy.subscription import Subscription

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.ros import qos
from lerobot_serve_interfaces import msg

PACKAGE, STATE = 'lerobot_serve_interfaces/msg', '/state'
GRAPH_POLL_S = 0.02
OWN_NODES = 1
# time without a change of the graph after which a search ends: none is known, a known one is
# missing, all known ones are found (counted since the last of them), a wanted one is missing
SETTLE_S, MISSING_SETTLE_S, KNOWN_SETTLE_S, WANTED_SETTLE_S = 0.5, 1.0, 0.1, 2.0
IsWanted = Callable[[str], bool]


class Graph(NamedTuple):
    """What is discovered now: the numbers of nodes and topics, and the nodes of the search."""

    node_count: int
    topic_count: int
    nodes: frozenset[str]


class GraphSearch:
    """
    See the module. `kind` is the type of the state, `known` the nodes found before, `settle_s`
    replaces SETTLE_S.
    """

    def __init__(
        self, node: Node, kind: str, known: Collection[str], settle_s: float | None = None
    ) -> None:
        self._node, self._kind, self._known = node, kind, frozenset(known)
        self._settle_s = SETTLE_S if settle_s is None else settle_s

    def run(
        self,
        timeout_s: float,
        *,
        on_found: Callable[[str], object],
        is_wanted: IsWanted | None = None,
        may_be_none: bool = False,
        lists_missing: bool = False,
    ) -> list[str]:
        """
        Return the nodes: at once when one `is_wanted`, else when no other one is expected.
        `on_found` gets each node as soon as it is found; `may_be_none`: do not wait for one;
        `lists_missing`: none of the known ones need be there, once any other node is discovered.
        """
        deadline_s = time.monotonic() + timeout_s
        graph = Graph(0, 0, frozenset())
        changed_s = found_s = time.monotonic()
        while True:
            now, now_s = self.look(), time.monotonic()
            for node in now.nodes - graph.nodes:
                on_found(node)
            changed_s = changed_s if now == graph else now_s
            found_s = found_s if now.nodes == graph.nodes else now_s
            graph = now
            if is_wanted and any(map(is_wanted, graph.nodes)):
                break
            # on a busy machine the first node of all may take seconds
            is_missing = lists_missing and bool(self._known) and graph.node_count > OWN_NODES
            has_any = bool(graph.nodes) or may_be_none or is_missing
            if has_any and self._is_settled(
                graph.nodes, now_s - found_s, now_s - changed_s, has_wanted=bool(is_wanted)
            ):
                break
            if now_s >= deadline_s:
                break
            time.sleep(GRAPH_POLL_S)
        return sorted(graph.nodes)

    def _is_settled(
        self, nodes: frozenset[str], found_s: float, unchanged_s: float, *, has_wanted: bool
    ) -> bool:
        """Return whether no other node is expected, by the time since the last change of both."""
        if not self._known <= nodes:
            return unchanged_s >= MISSING_SETTLE_S
        if not self._known:
            return unchanged_s >= (WANTED_SETTLE_S if has_wanted else self._settle_s)
        return unchanged_s >= self._settle_s if has_wanted else found_s >= KNOWN_SETTLE_S

    def look(self) -> Graph:
        """Return what is discovered now, without waiting."""
        topics = self._node.get_topic_names_and_types()
        nodes = (
            topic.removesuffix(STATE)
            for topic, types in topics
            if topic.endswith(STATE)
            and f'{PACKAGE}/{self._kind}' in types
            and self._node.count_publishers(topic)
        )
        return Graph(
            len(self._node.get_node_names_and_namespaces()), len(topics), frozenset(nodes)
        )


T = TypeVar('T')


class Received(NamedTuple):
    """A state, when it arrived by the monotonic clock, and how many have arrived by then."""

    message: Any
    at_s: float
    arrivals: int = 1

    @property
    def age_s(self) -> float:
        """The age of the state: of a first, latched one by the clocks of both machines."""
        if self.arrivals > 1:
            return time.monotonic() - self.at_s
        stamp_ns: int = self.message.stamp.ns
        return time.time() - stamp_ns / 1e9


class LatchedStates:
    """The newest states: the executor thread deposits, the thread of a client waits."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._changed = threading.Condition()
        self._states: dict[str, Received] = {}
        self._watched: dict[str, Subscription] = {}

    def watch(self, kind: type, topic: str) -> None:
        """Receive the states of a topic, by their record, from now on."""
        if topic in self._watched:
            return
        self._watched[topic] = self._node.create_subscription(
            getattr(msg, kind.__name__),
            topic,
            partial(self._deposit, kind, topic),
            qos.STATE,
            raw=True,
        )

    def get(self, topic: str) -> Received | None:
        """Return the newest state of a topic; None before the first."""
        with self._changed:
            return self._states.get(topic)

    def wait(self, accepted: Callable[[], T], timeout_s: float) -> T:
        """Return the first true value that the function returns after a state, or its last one."""
        with self._changed:
            return self._changed.wait_for(accepted, timeout_s)

    def close(self) -> None:
        """End the subscriptions, whose node continues."""
        for subscription in self._watched.values():
            self._node.destroy_subscription(subscription)
        self._watched.clear()

    # executor thread

    def _deposit(self, kind: type, topic: str, raw: bytes) -> None:
        try:
            message: Any = decode(kind, raw)
        except Malformed:
            # as if it had not arrived
            return
        with self._changed:
            before = self._states.get(topic)
            count = before.arrivals + 1 if before else 1
            self._states[topic] = Received(message, time.monotonic(), count)
            self._changed.notify_all()
