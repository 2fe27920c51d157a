# SPDX-License-Identifier: Apache-2.0
"""
The first pass over bags: what they hold, without the content of inputs. One thread.

It keeps the times of each message of an input, the bytes of the executed actions, and what names
them: robot files, tasks and outcomes. Some bytes for each message, so that 40 GB of bags fit in
memory.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lerobot_serve.contract.cdr import CdrReader
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.file_format import CAMERA_TYPES, full_type, STATE_TYPES
from lerobot_serve.tools.bags.message import (
    BagMessage,
    EDGE_STATE,
    EXECUTED,
    FrameHead,
    head_of,
    OUTCOME,
)
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.versions.file_hash import CountBytes

TEXT_LIMIT = 16 << 20
# between the last message of a bag and the first of the next, of a recorder that lost nothing
CONTINUES_NS = 10**9
# of times [ns]; MCAP has 64 bits without a sign
STAMP_END = 1 << 63
# what may be an input or a command of a robot file
INPUT_TYPES = {full_type(kind) for kind in (*STATE_TYPES, *CAMERA_TYPES, *COMMAND_TYPES)}
# kinds of frames of one topic, and which of each kind are kept to be decoded
HEADS, EXAMPLES = 8, (1, 2, 10, 100)


@dataclass(slots=True)
class TopicMessages:
    """
    The messages of one topic in the order of reading. Of images also how often each head was
    there, and the bytes of some messages with it.
    """

    type: str
    heads: Counter[FrameHead] = field(default_factory=Counter)
    examples: dict[FrameHead, list[bytes]] = field(default_factory=dict)
    sent_ns: array[int] = field(default_factory=lambda: array('q'))
    received_ns: array[int] = field(default_factory=lambda: array('q'))

    def add(self, message: BagMessage) -> None:
        self.sent_ns.append(message.sent_ns)
        self.received_ns.append(message.stamp_ns)
        head = head_of(message.type, message.data)
        if head is None or (head not in self.heads and len(self.heads) >= HEADS):
            return
        self.heads[head] += 1
        examples = self.examples.setdefault(head, [])
        # the first frames may be damaged
        if self.heads[head] in EXAMPLES:
            examples.append(message.data)


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
class EpisodeRows:
    """
    The rows of one episode, without those that a second recording repeats. `robot_file` is the
    one that was in force at its first row. `followed`: the end of the episode is recorded.
    """

    rows: list[ExecutedRow] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    bags: list[str] = field(default_factory=list)
    robot_file: str = ''
    followed: bool = False


class BagBegin(NamedTuple):
    """
    When the first input of a bag was received, 0 without any, and how many messages of each topic
    the bags before it hold.
    """

    received_ns: int
    first_numbers: Mapping[str, int]


@dataclass(slots=True)
class BagIndex:
    """What all bags hold together; `begins` has one for each bag."""

    begins: list[BagBegin] = field(default_factory=list)
    topics: dict[str, TopicMessages] = field(default_factory=dict)
    episodes: dict[EpisodeId, EpisodeRows] = field(default_factory=dict)
    tasks: dict[tuple[str, str], str] = field(default_factory=dict)
    outcomes: dict[tuple[str, str], EpisodeOutcome] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)
    has_source_stamps: bool = True


def is_input(message: BagMessage) -> bool:
    """Return whether a message may be an input or a command: those have numbers."""
    return message.type in INPUT_TYPES and has_usable_stamps(message)


def has_usable_stamps(message: BagMessage) -> bool:
    return 0 <= message.stamp_ns < STAMP_END and 0 <= message.sent_ns < STAMP_END


def numbered(
    messages: Iterable[BagMessage], first_numbers: Mapping[str, int]
) -> Iterator[tuple[int, BagMessage]]:
    """Yield each input with its number in its topic; the index has as many of them."""
    counts = dict(first_numbers)
    for message in messages:
        if not is_input(message):
            continue
        number = counts.get(message.topic, 0)
        counts[message.topic] = number + 1
        yield number, message


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
        indexing.end()
        indexing.index.damage += bag.damage
    return indexing.index


def bag_bytes(bags: Iterable[Bag]) -> int:
    return sum(file.stat().st_size for bag in bags for file in bag.files)


@dataclass(slots=True)
class _Latest:
    """The last row of an edge: of which episode, and whether this bag has it."""

    key: EpisodeId
    control_step: int
    received_ns: int
    in_bag: bool = True

    def continues(self, received_ns: int, control_step: int | None) -> bool:
        """Return whether no row is lost between this one and a message behind it."""
        if self.in_bag or control_step == self.control_step + 1:
            return True
        return 0 <= received_ns - self.received_ns <= CONTINUES_NS


class _Indexing:
    """The index of the messages so far, and what their order says."""

    def __init__(self) -> None:
        self.index = BagIndex()
        self._path = ''
        # by the node of the edge
        self._latest: dict[str, _Latest] = {}
        self._files: dict[str, str] = {}
        self._files_in_bag: set[str] = set()
        self._without_file: dict[str, list[EpisodeRows]] = {}
        self._robots_in_bag: dict[str, set[str]] = {}
        self._nameless: list[EpisodeOutcome] = []

    def begin(self, path: Path) -> None:
        """Begin a bag. An edge that began again may have another robot file."""
        self._path = str(path)
        counts = {topic: len(found.sent_ns) for topic, found in self.index.topics.items()}
        self.index.begins.append(BagBegin(0, counts))
        for latest in self._latest.values():
            latest.in_bag = False
        self._files_in_bag.clear()
        self._without_file.clear()
        self._robots_in_bag.clear()
        self._nameless.clear()

    def end(self) -> None:
        """End a bag: an outcome without a robot is of the only one that has its episode."""
        for outcome in self._nameless:
            robots = self._robots_in_bag.get(outcome.episode_id, set())
            if len(robots) == 1:
                name = next(iter(robots)), outcome.episode_id
                self.index.outcomes.setdefault(name, outcome)

    def add(self, message: BagMessage) -> None:
        """Add the next message. Raises Malformed, UnicodeDecodeError."""
        kind, index = message.type, self.index
        if not has_usable_stamps(message):
            index.damage.append(
                f'{message.topic}: a message is left out: its times are {message.stamp_ns} and '
                f'{message.sent_ns} ns'
            )
        elif is_input(message):
            known = index.topics.get(message.topic)
            if known is None:
                known = index.topics[message.topic] = TopicMessages(kind)
            known.add(message)
            if not index.begins[-1].received_ns:
                index.begins[-1] = index.begins[-1]._replace(received_ns=message.stamp_ns)
            index.has_source_stamps &= message.sent_ns != 0
        elif kind == EXECUTED:
            self._add_executed(message)
        elif kind == EDGE_STATE:
            state = message.record()
            if state.episode_id:
                index.tasks[state.client_id, state.episode_id] = state.task
            self._follow(message, state.episode_id)
        elif kind == OUTCOME:
            outcome = message.record()
            # the last report counts: a person may correct an earlier one
            if outcome.client_id:
                index.outcomes[outcome.client_id, outcome.episode_id] = outcome
            else:
                # newest first
                self._nameless.insert(0, outcome)
            self._end(message, outcome)
        elif message.is_robot_file:
            text = CdrReader(message.data).string(TEXT_LIMIT, 'robot file')
            self._add_robot_file(message.node, text)

    def _add_robot_file(self, node: str, text: str) -> None:
        self._files[node] = text
        self._files_in_bag.add(node)
        # a recorder may receive the file behind the first rows
        for episode in self._without_file.pop(node, []):
            episode.robot_file = text

    def _add_executed(self, message: BagMessage) -> None:
        executed = message.record()
        node = message.node
        self._follow(message, executed.episode_id, executed.control_step)
        if not executed.episode_id:
            return
        key = EpisodeId(node, executed.client_id, executed.episode_id)
        self._latest[node] = _Latest(key, executed.control_step, message.stamp_ns)
        self._robots_in_bag.setdefault(key.episode_id, set()).add(key.client_id)
        episode = self.index.episodes.get(key)
        if episode is None:
            episode = self.index.episodes[key] = EpisodeRows()
            episode.robot_file = self._files.get(node, '')
            if node not in self._files_in_bag:
                self._without_file.setdefault(node, []).append(episode)
        if message.data not in episode.seen:
            episode.seen.add(message.data)
            episode.rows.append(ExecutedRow(message.stamp_ns, message.data))
        if self._path not in episode.bags:
            episode.bags.append(self._path)

    def _follow(
        self, message: BagMessage, episode_id: str, control_step: int | None = None
    ) -> None:
        """
        Note that the last episode of this edge is over, where another one or none runs. Behind
        the end of a bag, whose recorder may have died, only what continues it says so.
        """
        before = self._latest.get(message.node)
        if before is None or before.key.episode_id == episode_id:
            return
        if before.continues(message.stamp_ns, control_step):
            self.index.episodes[before.key].followed = True

    def _end(self, message: BagMessage, outcome: EpisodeOutcome) -> None:
        """Note that an outcome ends its episode, unless rows between them may be lost."""
        for latest in self._latest.values():
            of_robot = outcome.client_id in ('', latest.key.client_id)
            if (
                of_robot
                and latest.key.episode_id == outcome.episode_id
                and latest.continues(message.stamp_ns, None)
            ):
                self.index.episodes[latest.key].followed = True


def in_time_order(bags: list[Bag]) -> list[Bag]:
    """Return the bags by their first messages, each only once."""
    resolved: dict[Path, Bag] = {}
    for bag in bags:
        resolved.setdefault(bag.path.resolve(), bag)
    firsts = [
        (next((m.stamp_ns for m in bag.read()), 0), i) for i, bag in enumerate(resolved.values())
    ]
    kept = list(resolved.values())
    return [kept[i] for _, i in sorted(firsts)]
