# SPDX-License-Identifier: Apache-2.0
"""
Plan rows for a bag without ExecutedAction: samples at the rate of a robot file. Pure; one thread.

Each row has, of each input and of the command, the newest message received at or before its
instant; never a later one. A command stays in force until the next. Where an input is older than
its bound the episode ends, and another one begins once every input is fresh again.

A robot file that fits no message is refused before hours are converted. A message here and there
may be unusable; where all of the first ones of a topic are, the file names joints, fields or types
that the topic lacks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, UTC

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.dataset.bag_index import BagIndex
from lerobot_serve.tools.dataset.episodes import (
    DatasetError,
    EpisodePlan,
    MessageKey,
    PlannedRow,
    RecordedRobot,
    RobotInput,
)

SECOND_NS = 10**9
RULE = (
    'sampled: of each input and of the command, the newest message received at or before the '
    'instant of the row; rows are 1/fps apart; no message of the future'
)


@dataclass(frozen=True, slots=True)
class _Received:
    """The messages of one input or command in the order of their reception."""

    topic: str
    max_age_ns: int | None
    times_ns: list[int]
    numbers: list[int]

    def newest(self, now_ns: int) -> tuple[MessageKey, int] | None:
        """Return the newest message received by now, and its age."""
        at = bisect_right(self.times_ns, now_ns) - 1
        if at < 0:
            return None
        return MessageKey(self.topic, self.numbers[at]), now_ns - self.times_ns[at]

    def next_ns(self, now_ns: int) -> int | None:
        """Return when the next message was received, None for never."""
        at = bisect_right(self.times_ns, now_ns)
        return self.times_ns[at] if at < len(self.times_ns) else None


def plan_sampled(
    index: BagIndex,
    robot: RecordedRobot,
    *,
    bag_name: str,
    task: str = '',
    first_numbers: Mapping[str, int],
    unusable: Set[MessageKey] = frozenset(),
) -> Iterator[EpisodePlan]:
    """
    Yield the episodes of one bag. `first_numbers` has, for each topic, how many messages bags
    before this one hold. Raises DatasetError for a bag without a topic of the robot file.
    """
    fps = robot.description.fps
    if fps != round(fps):
        raise DatasetError(f'fps is {fps:g}; LeRobot datasets have whole frames a second')
    wanted = [(one.topics, one.max_age_ns) for one in robot.inputs]
    found = [
        _received(index, topics, bound, first_numbers, unusable, bag_name)
        for topics, bound in [*wanted, ((robot.command_topic,), None)]
    ]
    rows: list[PlannedRow] = []
    begin_ns = max(one.times_ns[0] for one in found)
    end_ns = max(one.times_ns[-1] for one in found)
    count, last = 0, (end_ns - begin_ns) * round(fps) // SECOND_NS
    while count <= last:
        now_ns = begin_ns + count * SECOND_NS // round(fps)
        count += 1
        newest = [one.newest(now_ns) for one in found]
        old = next(
            (one for one, got in zip(found, newest, strict=True) if _is_old(one, got)), None
        )
        if old is None:
            keys = tuple(got[0] for got in newest if got)
            rows.append(PlannedRow(keys, b'', now_ns))
        elif rows:
            yield _episode(robot, bag_name, rows, task, f'{old.topic} is too old', first_numbers)
            rows = []
        if old is not None:
            # the next message of this input may be hours away
            next_ns = old.next_ns(now_ns)
            if next_ns is None:
                break
            count = max(count, -((begin_ns - next_ns) * round(fps) // SECOND_NS))
    if rows:
        yield _episode(robot, bag_name, rows, task, '', first_numbers)


def _is_old(one: _Received, got: tuple[MessageKey, int] | None) -> bool:
    return got is None or (one.max_age_ns is not None and got[1] > one.max_age_ns)


def _received(
    index: BagIndex,
    topics: tuple[str, ...],
    max_age_ns: int | None,
    first_numbers: Mapping[str, int],
    unusable: Set[MessageKey],
    bag_name: str,
) -> _Received:
    for topic in topics:
        if topic not in index.topics:
            continue
        first = first_numbers.get(topic, 0)
        times = index.topics[topic].received_ns
        usable = sorted(
            (at_ns, first + i)
            for i, at_ns in enumerate(times)
            if MessageKey(topic, first + i) not in unusable
        )
        if usable:
            return _Received(
                topic, max_age_ns, [at_ns for at_ns, _ in usable], [number for _, number in usable]
            )
    if any(topic in index.topics for topic in topics):
        raise DatasetError(f'{bag_name} has no message of {topics[0]} that can be used')
    there = ', '.join(sorted(index.topics)) or 'none'
    raise DatasetError(
        f'{bag_name} has no message of {topics[0]}, which the robot file names; it has {there}'
    )


def _episode(
    robot: RecordedRobot,
    bag_name: str,
    rows: list[PlannedRow],
    task: str,
    why: str,
    first_numbers: Mapping[str, int],
) -> EpisodePlan:
    return EpisodePlan(
        robot.description.name,
        # folders are called alike, and copied under other names
        utc_text(rows[0].received_ns),
        robot,
        tuple(rows),
        round(robot.description.fps),
        task=task,
        is_whole=not why,
        cut=f'ends after row {len(rows)}: {why}; the next episode begins behind the gap'
        if why
        else '',
        left_out=Counter(),
        first_numbers=first_numbers,
        bag=bag_name,
    )


def utc_text(time_ns: int) -> str:
    """Return a time in UTC to the nanosecond, such as 20261126T004710.123456789Z."""
    seconds, rest_ns = divmod(time_ns, SECOND_NS)
    return f'{datetime.fromtimestamp(seconds, UTC):%Y%m%dT%H%M%S}.{rest_ns:09d}Z'


FIRST_MESSAGES = 20
# the input of the message, None for the command; raises Malformed
Decode = Callable[[RobotInput | None, BagMessage], None]


def check_first_messages(
    messages: Iterable[BagMessage], robot: RecordedRobot, decode: Decode, bag_name: str
) -> None:
    """
    Raise DatasetError if the first FIRST_MESSAGES messages of an input or of the command cannot be
    used. Topics without a message are left to the plan.
    """
    sources = {topic: one for one in robot.inputs for topic in one.topics}
    waiting: dict[str, RobotInput | None] = {**sources, robot.command_topic: None}
    failed = dict.fromkeys(waiting, 0)
    for message in messages:
        if message.topic not in waiting:
            continue
        try:
            decode(waiting[message.topic], message)
        except Malformed as error:
            failed[message.topic] += 1
            if failed[message.topic] >= FIRST_MESSAGES:
                raise DatasetError(
                    f'{bag_name}: the first {FIRST_MESSAGES} messages of {message.topic} do not '
                    f'fit the robot file: {error}'
                ) from error
        else:
            del waiting[message.topic]
            if not waiting:
                return
