# SPDX-License-Identifier: Apache-2.0
"""
What all strategies share: topics, whose a message is, and what a new bag begins with; and the
simplest one, which records all the time, in slices bounded by size and by time.

No message is lost between two slices. The oldest ones can be deleted. The writing thread; `clock`
is monotonic [s].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
import re
import shutil
from typing import Any, NamedTuple

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import EdgeState, ExecutedAction
from lerobot_serve.tools.bags.message import BagMessage, EDGE_STATE, EXECUTED, is_service_event
from lerobot_serve.tools.bags.metadata import BagTopic, METADATA_FILE
from lerobot_serve.tools.bags.writer import BagWriter
from lerobot_serve.tools.recorder.bag_folder import BagFolder
from lerobot_serve.tools.recorder.known_robots import KnownRobots
from lerobot_serve.tools.recorder.options import RecordingRules

# how late a message may be behind one that was sent after it
REORDERED_NS = 2 * 10**9


def read_report(message: BagMessage) -> ExecutedAction | EdgeState | None:
    """Return what a robot says of itself; None for another message, or a malformed one."""
    try:
        return message.record() if message.type in (EXECUTED, EDGE_STATE) else None
    except Malformed:
        return None


class ReportOrder:
    """
    Skips reports of one robot that others have overtaken: those a little older than the newest.
    One that is much older is from a clock that stepped back, and counts.
    """

    def __init__(self) -> None:
        self._newest_ns: int | None = None

    def is_news(self, stamp_ns: int) -> bool:
        """Return whether a report counts."""
        behind_ns = 0 if self._newest_ns is None else self._newest_ns - stamp_ns
        if 0 < behind_ns < REORDERED_NS:
            return False
        self._newest_ns = stamp_ns
        return True


# the calls of open_session that a new bag begins with, of each server
CALLS = 256
TRANSIENT_LOCAL = 'transient_local'


class SortedMessage(NamedTuple):
    """A message, and the edge controllers whose it is; None: of all."""

    message: BagMessage
    owners: frozenset[str] | None

    def is_of(self, node: str) -> bool:
        """Return whether it concerns the robot of an edge controller."""
        return self.owners is None or node in self.owners


class MemoryRing:
    """`evicted` counts messages that had to go before their time, because of `limit_bytes`."""

    def __init__(self, before_s: float, limit_bytes: int) -> None:
        self._before_s, self._limit_bytes = before_s, limit_bytes
        self._kept: deque[tuple[float, SortedMessage]] = deque()
        self.bytes = self.evicted = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[SortedMessage]:
        return (message for _, message in self._kept)

    def add(self, message: SortedMessage, now_s: float) -> None:
        """Keep a message; the oldest ones go."""
        self.expire(now_s)
        self._kept.append((now_s, message))
        self.bytes += len(message.message.data)
        while self.bytes > self._limit_bytes:
            self._remove()
            self.evicted += 1

    def expire(self, now_s: float) -> None:
        """Forget what is too old."""
        while self._kept and now_s - self._kept[0][0] > self._before_s:
            self._remove()

    def _remove(self) -> None:
        self.bytes -= len(self._kept.popleft()[1].message.data)

    def of(self, node: str) -> Iterator[SortedMessage]:
        """Yield what concerns one robot, the oldest first."""
        return (message for message in self if message.is_of(node))


class StrategyWriter(ABC):
    """A MessageWriter that begins and ends bags. `bags` are the folders that were completed."""

    def __init__(
        self,
        folder: BagFolder,
        robots: KnownRobots,
        rules: RecordingRules,
        *,
        clock: Callable[[], float],
        log: Callable[[str], None],
    ) -> None:
        self.folder, self.robots, self.rules = folder, robots, rules
        self.clock, self.log = clock, log
        self.topics: dict[str, BagTopic] = {}
        self.counts: Counter[str] = Counter()
        self.finished = 0
        self._written_bytes = 0
        self._latched: dict[str, deque[SortedMessage]] = {}
        self._complaints: set[str] = set()

    # as a MessageWriter

    @property
    def destination(self) -> str:
        return str(self.folder.root)

    @property
    def size_bytes(self) -> int:
        return self._written_bytes + sum(bag.size_bytes for bag in self.open_bags())

    def add_topic(self, topic: BagTopic) -> None:
        self.topics[topic.name] = topic

    def write(self, message: BagMessage) -> None:
        """Sort a message and hand it to the strategy. Raises OSError."""
        if complaint := self.robots.learn(message):
            self._complain(complaint)
        sorted_message = SortedMessage(message, self.robots.owners(message))
        if self.robots.wants(sorted_message.owners):
            self.record(sorted_message)
            self._keep_latched(sorted_message)

    def flush(self) -> None:
        """Put all messages into their files; begin and end what is due. Raises OSError."""
        self.poll()
        for bag in self.open_bags():
            bag.flush()

    def abort(self) -> None:
        for bag in self.open_bags():
            bag.abort()
        self.folder.close()

    def close(self) -> None:
        """End all bags. Raises OSError."""
        self.end()
        self.folder.close()

    # of a strategy

    @abstractmethod
    def record(self, message: SortedMessage) -> None:
        """Write a message where it belongs. Raises OSError."""

    @abstractmethod
    def poll(self) -> None:
        """Do what is due by now; called at least each second. Raises OSError."""

    @abstractmethod
    def end(self) -> None:
        """End all bags. Raises OSError."""

    @abstractmethod
    def open_bags(self) -> list[BagWriter]:
        """Return the bags that are being written."""

    # for strategies

    def write_into(
        self, bag: BagWriter, message: SortedMessage, *, received_ns: int | None = None
    ) -> None:
        """Write a message into a bag; `received_ns` replaces its time of reception."""
        found = message.message
        bag.add_topic(self.topics[found.topic])
        bag.write(found if received_ns is None else found._replace(stamp_ns=received_ns))
        self.counts[found.topic] += 1

    def write_latched(self, bag: BagWriter, node: str | None, begin_ns: int) -> None:
        """
        Write what a late subscriber gets: all, or that of one robot. A bag of today does not begin
        when a robot was started: they are received at its begin.
        """
        for message in self.latched(node):
            self.write_into(bag, message, received_ns=begin_ns)

    def latched(self, node: str | None) -> Iterator[SortedMessage]:
        """Yield the last messages of latched topics: all, or those that concern one robot."""
        for kept in self._latched.values():
            yield from (each for each in kept if node is None or each.is_of(node))

    def finish(self, bag: BagWriter) -> None:
        """Complete a bag. Raises OSError."""
        bag.close()
        self._written_bytes += bag.size_bytes
        self.finished += 1
        self.log(f'{bag.folder.name}: {bag.contents.messages} messages')

    def _keep_latched(self, message: SortedMessage) -> None:
        topic = self.topics[message.message.topic]
        if any(profile.durability == TRANSIENT_LOCAL for profile in topic.profiles):
            length = CALLS if is_service_event(topic.name, topic.type) else 1
            self._latched.setdefault(topic.name, deque(maxlen=length)).append(message)

    def _complain(self, text: str) -> None:
        """Log what is wrong with a message, once for each text, up to a bound."""
        if text not in self._complaints and len(self._complaints) < 1000:
            self._complaints.add(text)
            self.log(text)


SLICE = re.compile(r'slice_(\d{6,9})_\d{8}-\d{6}(-\d+)?')


class SentryWriter(StrategyWriter):
    """Records all the time, in slices. The writing thread."""

    def __init__(self, *common: Any, **options: Any) -> None:
        super().__init__(*common, **options)
        self._bag: BagWriter | None = None
        self._begin_s = 0.0
        names = [SLICE.fullmatch(path.name) for path in self.folder.root.iterdir()]
        self._number = max((int(match[1]) for match in names if match), default=0)

    def record(self, message: SortedMessage) -> None:
        if self._bag is None:
            self._bag = self._begin(message.message.stamp_ns)
        self.write_into(self._bag, message)
        if 0 < 1e6 * self.rules.slice_size <= self._bag.size_bytes:
            self.end()

    def poll(self) -> None:
        if self._bag and 0 < self.rules.slice_time <= self.clock() - self._begin_s:
            self.end()

    def end(self) -> None:
        if self._bag is None:
            return
        bag, self._bag = self._bag, None
        self.finish(bag)
        self._delete_old()

    def open_bags(self) -> list[BagWriter]:
        return [self._bag] if self._bag else []

    def _begin(self, begin_ns: int) -> BagWriter:
        self._number += 1
        self._begin_s = self.clock()
        bag = self.folder.begin('slice', f'{self._number:06}', begin_ns=begin_ns)
        self.write_latched(bag, None, begin_ns)
        return bag

    def _delete_old(self) -> None:
        if not self.rules.keep_slices:
            return
        for folder in whole_slices(self.folder.root)[: -self.rules.keep_slices]:
            shutil.rmtree(folder, ignore_errors=True)
            self.log(f'{folder.name} deleted: --keep-slices {self.rules.keep_slices}')


def whole_slices(root: Path) -> list[Path]:
    """Return the complete slices of a folder, the oldest first."""
    found = {path: SLICE.fullmatch(path.name) for path in root.iterdir()}
    whole = {
        path: int(match[1])
        for path, match in found.items()
        if match and not path.is_symlink() and (path / METADATA_FILE).is_file()
    }
    return sorted(whole, key=lambda path: whole[path])
