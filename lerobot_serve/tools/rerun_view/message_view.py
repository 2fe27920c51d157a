# SPDX-License-Identifier: Apache-2.0
"""Passes all messages of a bag, or those of a live robot, to a viewer or a file. One thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import node_name
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CHUNK,
    EDGE_STATE,
    EXECUTED,
    OBSERVATION,
    OPEN_SESSION,
)
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.bags.request_pairs import is_robot_reply_topic
from lerobot_serve.tools.rerun_view.message_mapping import (
    MessageMapping,
    OF_NODES,
    OF_ROBOTS,
)

if TYPE_CHECKING:
    # it imports the package rerun
    from lerobot_serve.tools.rerun_view.rerun_sink import RerunSink

# few messages, whatever the fleet
OF_ALL = frozenset({*OF_ROBOTS, *OF_NODES, OPEN_SESSION}) - {EXECUTED}


class LiveTopics:
    """
    Selects the topics of a live view. Of a fleet, a view of one robot takes only its own topics,
    and requests only at the server that it uses. Executor and writing thread; each set is replaced
    as a whole.
    """

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


# what is handed to the viewer at once; it may be slower than a bag is read
FLUSH_BYTES = 16 << 20


class MessageView:
    """A MessageWriter, for a queue of received messages and for those of a bag."""

    def __init__(self, mapping: MessageMapping, sink: RerunSink) -> None:
        self.mapping, self._sink = mapping, sink
        self._unflushed_bytes = 0
        self.messages = 0

    @property
    def destination(self) -> str:
        return self._sink.destination

    @property
    def size_bytes(self) -> int:
        """Always 0: a view has no limit of size."""
        return 0

    def add_topic(self, topic: BagTopic) -> None:
        """Do nothing: a message has its type."""

    def write(self, message: BagMessage) -> None:
        """Show a message. Raises OSError."""
        self.messages += 1
        self._sink.show(self.mapping.add(message), self.mapping.layout)
        self._unflushed_bytes += len(message.data)
        if self._unflushed_bytes >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Wait until the viewer or the file has everything so far. Raises OSError."""
        self._unflushed_bytes = 0
        self._sink.flush(self.mapping.layout)

    def close(self) -> None:
        """Show what waited, and end. Raises OSError."""
        self._sink.show(self.mapping.finish(), self.mapping.layout)
        self._sink.close(self.mapping.layout)

    def abort(self) -> None:
        """End after an error."""
        self._sink.abort()


def show_bag(bag: Bag, view: MessageView, is_stopped: Callable[[], bool]) -> bool:
    """
    Show a bag until its end or until `is_stopped`, and end the view; return whether it was the
    end. Raises BagError, OSError.
    """
    is_whole = True
    try:
        for message in bag.read():
            if is_stopped():
                is_whole = False
                break
            view.write(message)
    except BaseException:
        view.abort()
        raise
    view.close()
    return is_whole
