# SPDX-License-Identifier: Apache-2.0
"""
Selects the topics of a live view. Of a fleet, a view of one robot takes only its own topics, and
requests only at the server that it uses.

Executor and writing thread; each set is replaced as a whole.
"""

from __future__ import annotations

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import node_name
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, EDGE_STATE, EXECUTED, OBSERVATION
from lerobot_serve.tools.bags.request_pairs import is_robot_reply_topic
from lerobot_serve.tools.bags.service_events import OPEN_SESSION
from lerobot_serve.tools.rerun_view.mapping.message_mapping import (
    MessageMapping,
    OF_NODES,
    OF_ROBOTS,
)

# few messages, whatever the fleet
OF_ALL = frozenset({*OF_ROBOTS, *OF_NODES, OPEN_SESSION}) - {EXECUTED}


class LiveTopics:
    """The topics of the robot of `mapping`; those of all robots if it shows all."""

    def __init__(self, mapping: MessageMapping) -> None:
        self._mapping = mapping
        # full names of edge controllers, and of the servers that they use
        self._edges: frozenset[str] = frozenset()
        self._servers: frozenset[str] = frozenset()

    def takes(self, topic: str, kind: str) -> bool:
        """Return whether to subscribe to a topic. Executor thread."""
        if kind in OF_ALL:
            return True
        if kind == CHUNK and not is_robot_reply_topic(topic):
            return False
        if kind not in (EXECUTED, CHUNK, OBSERVATION):
            return False
        if self._mapping.shows_all:
            return True
        node = _parent(topic)
        if kind == EXECUTED:
            return node in self._edges
        if kind == CHUNK:
            # of the node over ROS 2, of the robot over Zenoh, or ~/no_session of its server
            return node in self._edges | self._servers or node in map(_parent, self._edges)
        return node in self._servers

    def learn(self, message: BagMessage) -> None:
        """Note where the robot and its server are. Writing thread."""
        if message.type != EDGE_STATE:
            return
        try:
            state = message.record()
        except Malformed:
            return
        if self._mapping.is_wanted(state.client_id):
            self._edges |= {_parent(message.topic)}
            if state.server:
                self._servers |= {node_name(state.server)}


def _parent(name: str) -> str:
    return name.rpartition('/')[0]
