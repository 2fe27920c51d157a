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
    The rows of one episode, without those that a second recording repeats. `followed`: the edge
    recorded something after its last row.
    """

    rows: list[ExecutedRow] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    bags: list[str] = field(default_factory=list)
    followed: bool = False


@dataclass(slots=True)
class BagIndex:
    """What all bags hold together."""

    topics: dict[str, TopicMessages] = field(default_factory=dict)
    episodes: dict[EpisodeId, RecordedEpisode] = field(default_factory=dict)
    robot_files: dict[str, str] = field(default_factory=dict)
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
    index = BagIndex()
    latest: dict[str, EpisodeId] = {}
    for bag in bags:
        for message in bag.read():
            count_bytes(len(message.data))
            try:
                _add(index, message, latest, bag.path)
            except (Malformed, UnicodeDecodeError) as error:
                index.damage.append(f'{message.topic}: a message cannot be read ({error})')
        index.damage += bag.damage
    return index


def bag_bytes(bags: Iterable[Bag]) -> int:
    return sum(file.stat().st_size for bag in bags for file in bag.files)


def _add(index: BagIndex, message: BagMessage, latest: dict[str, EpisodeId], path: Path) -> None:
    kind = message.type
    if kind in INPUT_TYPES:
        known = index.topics.get(message.topic)
        if known is None:
            known = index.topics[message.topic] = TopicMessages(kind, message.data)
        known.sent_ns.append(message.sent_ns)
        known.received_ns.append(message.stamp_ns)
        index.has_source_stamps &= message.sent_ns != 0
    elif kind == message_decoding.EXECUTED_TYPE:
        _add_executed(index, message, latest, path)
    elif kind == message_decoding.STATE_TYPE:
        state = message_decoding.decode_state(message.data)
        if state.episode_id:
            index.tasks[state.client_id, state.episode_id] = state.task
        _follow(index, latest, message.topic.rpartition('/')[0], state.episode_id)
    elif kind == fleet_decoding.OUTCOME_TYPE:
        outcome = fleet_decoding.decode_outcome(message.data)
        # the last report counts: a person may correct an earlier one
        index.outcomes[outcome.client_id, outcome.episode_id] = outcome
    elif kind == TEXT_TYPE and message.topic.endswith(ROBOT_FILE):
        text = CdrReader(message.data).string(TEXT_LIMIT, 'robot file')
        index.robot_files[message.topic.removesuffix(ROBOT_FILE)] = text


def _add_executed(
    index: BagIndex, message: BagMessage, latest: dict[str, EpisodeId], path: Path
) -> None:
    executed = message_decoding.decode_executed(message.data)
    node = message.topic.rpartition('/')[0]
    _follow(index, latest, node, executed.episode_id)
    if not executed.episode_id:
        return
    key = latest[node] = EpisodeId(node, executed.client_id, executed.episode_id)
    episode = index.episodes.setdefault(key, RecordedEpisode())
    if message.data not in episode.seen:
        episode.seen.add(message.data)
        episode.rows.append(ExecutedRow(message.stamp_ns, message.data))
    if str(path) not in episode.bags:
        episode.bags.append(str(path))


def _follow(index: BagIndex, latest: dict[str, EpisodeId], node: str, episode_id: str) -> None:
    """Note that the last episode of this edge is over, where another one or none runs."""
    before = latest.get(node)
    if before is not None and before.episode_id != episode_id:
        index.episodes[before].followed = True
