# SPDX-License-Identifier: Apache-2.0
"""
The first pass over bags: what they hold, without the content of inputs. One thread.

It keeps the times of each message of an input, the bytes of the executed actions, and what names
them: robot files, tasks and outcomes. Some bytes for each message, so that 40 GB of bags fit in
memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.tools.bags import fleet_decoding, message_decoding
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.wire.cdr import CdrReader
from lerobot_serve.wire.errors import Malformed

ROBOT_FILE, TEXT_TYPE = '/robot_file', 'std_msgs/msg/String'
TEXT_LIMIT = 16 << 20
# what may be an input or a command of a robot file
INPUT_TYPES = {
    *('sensor_msgs/msg/JointState', 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'),
    *('nav_msgs/msg/Odometry', 'std_msgs/msg/Float64MultiArray', 'geometry_msgs/msg/Twist'),
    *('geometry_msgs/msg/TwistStamped', 'trajectory_msgs/msg/JointTrajectory'),
}

CountBytes = Callable[[int], None]


@dataclass(slots=True)
class TopicMessages:
    """The messages of one topic in the order of reading; `first` has the bytes of the first."""

    type: str
    first: bytes
    sent_ns: array[int] = field(default_factory=lambda: array('q'))
    received_ns: array[int] = field(default_factory=lambda: array('q'))


class EpisodeId(NamedTuple):
    """Node of the edge, robot and episode."""

    node: str
    client_id: str
    episode_id: str


class ExecutedRow(NamedTuple):
    """The bytes of an ExecutedAction and its reception time."""

    received_ns: int
    data: bytes


@dataclass(slots=True)
class RecordedEpisode:
    """
    The rows of one episode, without those that a second recording repeats. `robot_file` is the
    one that was in force at its first row. `followed`: the end of the episode is recorded.
    """

    rows: list[ExecutedRow] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    bags: list[str] = field(default_factory=list)
    robot_file: str = ''
    followed: bool = False


@dataclass(slots=True)
class BagIndex:
    """What all bags hold together."""

    topics: dict[str, TopicMessages] = field(default_factory=dict)
    episodes: dict[EpisodeId, RecordedEpisode] = field(default_factory=dict)
    tasks: dict[tuple[str, str], str] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], fleet_decoding.EpisodeOutcome] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    has_source_stamps: bool = True


def numbered(messages: Iterable[BagMessage]) -> Iterator[tuple[int, BagMessage]]:
    """Yield each message with its number in its topic; both passes count alike."""
    counts: dict[str, int] = {}
    for message in messages:
        number = counts.get(message.topic, 0)
        counts[message.topic] = number + 1
        yield number, message


def all_messages(bags: Iterable[Bag], count_bytes: CountBytes) -> Iterator[BagMessage]:
    """Yield the messages of all bags, one bag after the other. Raises BagError."""
    for bag in bags:
        for message in bag.read():
            count_bytes(len(message.data))
            yield message


def index_bags(bags: Iterable[Bag], count_bytes: CountBytes) -> BagIndex:
    """Read the bags once. Raises BagError."""
    indexing = _Indexing()
    for bag in bags:
        indexing.begin(bag.path)
        for message in bag.read():
            count_bytes(len(message.data))
            try:
                indexing.add(message)
            except (Malformed, UnicodeDecodeError) as error:
                indexing.index.damage.append(
                    f'{message.topic}: a message cannot be read ({error})'
                )
        indexing.index.damage += bag.damage
    return indexing.index


def bag_bytes(bags: Iterable[Bag]) -> int:
    return sum(file.stat().st_size for bag in bags for file in bag.files)


class _Indexing:
    """The index of the messages so far, and what their order says."""

    def __init__(self) -> None:
        self.index = BagIndex()
        self._path = ''
        # by the node of the edge
        self._latest: dict[str, EpisodeId] = {}
        self._files: dict[str, str] = {}
        self._files_in_bag: set[str] = set()
        self._without_file: dict[str, list[RecordedEpisode]] = {}

    def begin(self, path: Path) -> None:
        """Begin a bag. An edge that began again may have another robot file."""
        self._path = str(path)
        self._files_in_bag.clear()
        self._without_file.clear()

    def add(self, message: BagMessage) -> None:
        """Add the next message. Raises Malformed, UnicodeDecodeError."""
        kind, index = message.type, self.index
        if kind in INPUT_TYPES:
            known = index.topics.get(message.topic)
            if known is None:
                known = index.topics[message.topic] = TopicMessages(kind, message.data)
            known.sent_ns.append(message.sent_ns)
            known.received_ns.append(message.stamp_ns)
            index.has_source_stamps &= message.sent_ns != 0
        elif kind == message_decoding.EXECUTED_TYPE:
            self._add_executed(message)
        elif kind == message_decoding.STATE_TYPE:
            state = message_decoding.decode_state(message.data)
            if state.episode_id:
                index.tasks[state.client_id, state.episode_id] = state.task
            self._follow(message.topic.rpartition('/')[0], state.episode_id)
        elif kind == fleet_decoding.OUTCOME_TYPE:
            outcome = fleet_decoding.decode_outcome(message.data)
            # the last report counts: a person may correct an earlier one
            index.outcomes[outcome.client_id, outcome.episode_id] = outcome
        elif kind == TEXT_TYPE and message.topic.endswith(ROBOT_FILE):
            text = CdrReader(message.data).string(TEXT_LIMIT, 'robot file')
            self._add_robot_file(message.topic.removesuffix(ROBOT_FILE), text)

    def _add_robot_file(self, node: str, text: str) -> None:
        self._files[node] = text
        self._files_in_bag.add(node)
        # a recorder may receive the file behind the first rows
        for episode in self._without_file.pop(node, []):
            episode.robot_file = text

    def _add_executed(self, message: BagMessage) -> None:
        executed = message_decoding.decode_executed(message.data)
        node = message.topic.rpartition('/')[0]
        self._follow(node, executed.episode_id)
        if not executed.episode_id:
            return
        key = self._latest[node] = EpisodeId(node, executed.client_id, executed.episode_id)
        episode = self.index.episodes.get(key)
        if episode is None:
            episode = self.index.episodes[key] = RecordedEpisode()
            episode.robot_file = self._files.get(node, '')
            if node not in self._files_in_bag:
                self._without_file.setdefault(node, []).append(episode)
        if message.data not in episode.seen:
            episode.seen.add(message.data)
            episode.rows.append(ExecutedRow(message.stamp_ns, message.data))
        if self._path not in episode.bags:
            episode.bags.append(self._path)

    def _follow(self, node: str, episode_id: str) -> None:
        """Note that the last episode of this edge is over, where another one or none runs."""
        before = self._latest.get(node)
        if before is not None and before.episode_id != episode_id:
            self.index.episodes[before].followed = True
