# SPDX-License-Identifier: Apache-2.0
"""
The edge controllers that were heard, the topics of their robot files, and whose a message is.
A robot file comes from the network: it is bounded, and nothing that it names is opened.

Each thread has its own: the executor to choose topics, the writing thread to sort messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
import hashlib
from typing import Any

from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import is_topic
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.file_format import (
    CAMERA_TYPES,
    DEVICE_TYPE,
    DEVICE_TYPES,
    full_type,
    JOINT_STATE,
    JOY,
    normalized,
    parse_received_yaml,
    ROBOT_BYTES_LIMIT,
    RobotFileError,
    STATE_TYPES,
)
from lerobot_serve.experience.recorded_episode import RECORDED_TYPE
from lerobot_serve.files.parsing import shown
from lerobot_serve.tools.bags.message import (
    BagMessage,
    CHUNK,
    DECISION,
    DIAGNOSTICS,
    DIVERGENCE,
    EDGE_STATE,
    EXECUTED,
    is_robot_file,
    is_service_event,
    OBSERVATION,
    OUTCOME,
    PACKAGE,
    ROBOT_FILE,
)

TOPICS_LIMIT = 64


def robot_topics(text: str, node: str) -> dict[str, str]:
    """
    Return full name and type of each topic, as the node of this full name resolves them. Raises
    RobotFileError.
    """
    place = f'{node}/robot_file'
    found: dict[str, str] = {}
    for name, kind, allowed in _named(normalized(parse_received_yaml(text, place))):
        topic = resolved(name, node) if isinstance(name, str) else ''
        if not is_topic(topic):
            raise RobotFileError(f'{place}: {shown(name)} is not the name of a topic')
        if kind not in allowed:
            listed = ', '.join(allowed)
            raise RobotFileError(f'{place}: {topic} must be of {listed}, got {shown(kind)}')
        found[topic] = full_type(kind)
        if len(found) > TOPICS_LIMIT:
            raise RobotFileError(f'{place}: more than {TOPICS_LIMIT} topics')
    return found


def resolved(name: str, node: str) -> str:
    """Return the full name of a topic that a node names."""
    if name.startswith('/'):
        return name
    if name.startswith('~/'):
        return node + name[1:]
    return f'{node.rpartition("/")[0]}/{name}'


def _named(content: Any) -> Iterator[tuple[Any, Any, list[str]]]:
    """Yield name, type and the allowed types of each topic that is named."""
    top = _mapping(content)
    state = top.get('state')
    for each in state if isinstance(state, list) else []:
        yield *_topic(each, JOINT_STATE), STATE_TYPES
    for each in _mapping(top.get('cameras')).values():
        yield *_topic(each, CAMERA_TYPES[0]), CAMERA_TYPES
    commands = list(COMMAND_TYPES)
    if command := _mapping(top.get('command')):
        yield *_topic(command, commands[0]), commands
    if device := _mapping(top.get('intervention')):
        yield *_topic(device, DEVICE_TYPE), DEVICE_TYPES
        if 'topic' in (deadman := _mapping(device.get('deadman'))):
            yield deadman['topic'], JOY, [JOY]


def _topic(content: Any, kind: str) -> tuple[Any, Any]:
    table = _mapping(content)
    return table.get('topic'), table.get('type', kind)


def _mapping(content: Any) -> dict[Any, Any]:
    return content if isinstance(content, dict) else {}


ROBOTS_LIMIT = 1000
NO_ROBOT: frozenset[str] = frozenset()
# message types that name their robot
WITH_CLIENT = frozenset((OBSERVATION, CHUNK, DIVERGENCE, DECISION, OUTCOME))


@dataclass(slots=True)
class KnownRobot:
    """One edge controller: the name of its robot, and the topics that its robot file names."""

    client_id: str = ''
    topics: dict[str, str] = field(default_factory=dict)


class KnownRobots:
    """
    Learns from ~/state and ~/robot_file. `wanted` is the name of one robot, of its edge controller
    or of its namespace; empty for all.
    """

    def __init__(self, wanted: str = '') -> None:
        self.wanted = wanted
        self.robots: dict[str, KnownRobot] = {}
        self._by_topic: dict[str, frozenset[str]] = {}
        # of the last robot file of each edge controller
        self._digests: dict[str, bytes] = {}

    def is_wanted(self, node: str) -> bool:
        """Return whether to record the robot of an edge controller."""
        names = (self.client_id(node), node, parent(node), parent(node).removeprefix('/'))
        return not self.wanted or self.wanted in names

    def wants(self, owners: frozenset[str] | None) -> bool:
        """Return whether to record a message of these edge controllers; None: of all."""
        return not self.wanted or owners is None or any(map(self.is_wanted, owners))

    def client_id(self, node: str) -> str:
        """Return the name of a robot, that of its node until its state was heard."""
        robot = self.robots.get(node)
        return (robot.client_id if robot else '') or node

    def takes(self, topic: str, kind: str) -> bool:
        """Return whether to subscribe to a topic."""
        if any(token.startswith('_') for token in topic.split('/')):
            return is_service_event(topic, kind)
        if is_robot_file(topic, kind) or kind == EDGE_STATE:
            return True
        if kind == EXECUTED:
            return self.is_wanted(parent(topic))
        if kind == RECORDED_TYPE:
            # of other bags
            return False
        if kind.partition('/')[0] == PACKAGE or topic == DIAGNOSTICS:
            return True
        return any(
            self.robots[node].topics.get(topic) == kind
            for node in self._by_topic.get(topic, NO_ROBOT)
            if self.is_wanted(node)
        )

    def learn(self, message: BagMessage) -> str:
        """Learn from a message; return what is wrong with it, in words."""
        node = message.node
        if not (message.is_robot_file or message.type == EDGE_STATE):
            return ''
        if node not in self.robots and len(self.robots) >= ROBOTS_LIMIT:
            return f'{node} is not recorded: {ROBOTS_LIMIT} robots are known'
        try:
            if message.is_robot_file:
                self._learn_topics(node, message.data)
            else:
                client_id = message.record().client_id
                self.robots.setdefault(node, KnownRobot()).client_id = client_id
        except (Malformed, RobotFileError) as error:
            return str(error)
        return ''

    def _learn_topics(self, node: str, raw: bytes) -> None:
        text = CdrReader(raw).string(ROBOT_BYTES_LIMIT, ROBOT_FILE)
        digest = hashlib.sha256(text.encode()).digest()
        if self._digests.get(node) == digest:
            return
        if node in self._digests or len(self._digests) < ROBOTS_LIMIT:
            # also of one that is refused: it is not parsed again
            self._digests[node] = digest
        topics = robot_topics(text, node)
        robot = self.robots.setdefault(node, KnownRobot())
        if topics == robot.topics:
            return
        robot.topics = topics
        by_topic: dict[str, set[str]] = {}
        for name, each in self.robots.items():
            for topic in each.topics:
                by_topic.setdefault(topic, set()).add(name)
        self._by_topic = {topic: frozenset(nodes) for topic, nodes in by_topic.items()}

    def owners(self, message: BagMessage) -> frozenset[str] | None:
        """Return the edge controllers whose message it is; None for one that concerns all."""
        topic, kind = message.topic, message.type
        if kind in (EXECUTED, EDGE_STATE) or message.is_robot_file:
            return frozenset((message.node,))
        if topic in self._by_topic:
            return self._by_topic[topic]
        if kind not in WITH_CLIENT:
            return None
        try:
            is_large = kind in (OBSERVATION, CHUNK)
            named = read_envelope(message.data) if is_large else message.record()
        except Malformed:
            return NO_ROBOT
        client = named.client_id
        if not client and kind == OUTCOME:
            # a judge beside the robot need not name it
            return frozenset(node for node in self.robots if parent(node) == parent(topic))
        return frozenset(n for n, robot in self.robots.items() if robot.client_id == client)


def parent(name: str) -> str:
    """Return the node of a topic `~/...`, or the namespace of a node."""
    return name.rpartition('/')[0]
