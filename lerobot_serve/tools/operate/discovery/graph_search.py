# SPDX-License-Identifier: Apache-2.0
"""
Find the nodes that publish a state, by the graph of a node. The thread of a client; it polls.

A new node discovers the others one after the other: after the first router a second one may appear
up to half a second later. Nodes that were found before end the wait as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
import time
from typing import NamedTuple

from rclpy.node import Node

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
