# SPDX-License-Identifier: Apache-2.0
"""
Give each planned row its messages, in order, in the second pass over bags. One thread.

A message is kept from its reading until the last row that needs it, so memory holds what is in
flight, not an episode. Before it, the shape of the frames of each camera: that of most messages of
its topic.

Inputs come in the order of their reception. Where one recorder has the cameras and another one the
joints, one bag after the other would hold all frames until the last bag is read. Bags that no
episode needs together are read one after the other, as each open episode has encoders of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
import heapq
from operator import itemgetter
from typing import Any, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.description import StateSource
from lerobot_serve.tools.bags.message import BagMessage, FrameHead
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset.bag_index import BagBegin, BagIndex, numbered
from lerobot_serve.tools.dataset.episodes import DatasetError, EpisodePlan, MessageKey, RobotInput
from lerobot_serve.tools.dataset.features import camera_columns, FrameShape, row_values, shape_of
from lerobot_serve.tools.dataset.staging import EpisodeSink
from lerobot_serve.versions.file_hash import CountBytes

if TYPE_CHECKING:
    from lerobot_serve.tools.dataset.ros.message_values import MessageValues


@dataclass(slots=True)
class _Held:
    """A message in flight, what was decoded of it, and how many rows need it still."""

    message: BagMessage
    uses: int
    decoded: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Open:
    """An episode and its next row."""

    plan: EpisodePlan
    columns: dict[str, str]
    next_row: int = 0
    is_given_up: bool = False


class RowFeed:
    """
    See the module. `shapes` has the frames that each camera topic must have, by robot. `unusable`
    has the messages that rows need and that cannot be decoded, with the reason.
    """

    def __init__(
        self,
        plans: Sequence[EpisodePlan],
        shapes: Mapping[str, Mapping[str, FrameShape]],
        values: MessageValues,
        *,
        is_labelled: bool,
    ) -> None:
        self._shapes, self._values, self._is_labelled = shapes, values, is_labelled
        self.unusable: dict[MessageKey, str] = {}
        self._uses: Counter[MessageKey] = Counter()
        self._waiting: dict[MessageKey, list[_Open]] = {}
        self._held: dict[MessageKey, _Held] = {}
        for plan in plans:
            columns = camera_columns(plan.robot, shapes[plan.robot.digest])
            for row in plan.rows:
                self._uses.update(row.messages)
            self._wait(_Open(plan, columns))

    def run(self, messages: Iterable[tuple[int, BagMessage]], sink: EpisodeSink) -> None:
        """
        Give all rows to the sink. An episode with an unusable message is given up; its other
        messages are decoded all the same, to find all of those. Raises what the sink raises.
        """
        for number, message in messages:
            key = MessageKey(message.topic, number)
            uses = self._uses.get(key, 0)
            if not uses:
                continue
            self._held[key] = _Held(message, uses)
            for one in self._waiting.pop(key, []):
                self._advance(one, sink)
            if not self._waiting:
                return

    def _wait(self, one: _Open) -> None:
        """Wait for the first message that the next row lacks."""
        row = one.plan.rows[one.next_row]
        missing = next(key for key in row.messages if key not in self._held)
        self._waiting.setdefault(missing, []).append(one)

    def _advance(self, one: _Open, sink: EpisodeSink) -> None:
        rows = one.plan.rows
        while one.next_row < len(rows):
            keys = rows[one.next_row].messages
            if any(key not in self._held for key in keys):
                self._wait(one)
                return
            self._give(one, sink)
            for key in keys:
                self._release(key)
            one.next_row += 1
        if not one.is_given_up:
            sink.end(one.plan)

    def _give(self, one: _Open, sink: EpisodeSink) -> None:
        row = self._row(one)
        if one.is_given_up:
            return
        if row is None:
            one.is_given_up = True
            sink.give_up(one.plan)
        else:
            sink.add(one.plan, row)

    def _release(self, key: MessageKey) -> None:
        held = self._held[key]
        held.uses -= 1
        if not held.uses:
            del self._held[key]

    def _row(self, one: _Open) -> dict[str, Any] | None:
        """Return the next row, None if one of its messages cannot be used."""
        robot, keys = one.plan.robot, one.plan.rows[one.next_row].messages
        states: dict[StateSource, Float64Array] = {}
        frames: dict[str, Any] = {}
        command: Float64Array | None = None
        for source, key in zip(robot.inputs, keys, strict=False):
            try:
                if source.camera:
                    frames[one.columns[source.name]] = self._frame(one, source, key)
                else:
                    data = self._held[key].message.data
                    states |= {
                        each: self._values.state_values(data, each) for each in source.sources
                    }
            except Malformed as error:
                self.unusable[key] = str(error)
        if len(keys) > len(robot.inputs):
            try:
                command = self._command(one, keys[-1])
            except Malformed as error:
                self.unusable[keys[-1]] = str(error)
        if any(key in self.unusable for key in keys):
            return None
        return row_values(
            one.plan,
            one.next_row,
            state=np.concatenate([states[state] for state in robot.description.state]),
            frames=frames,
            command=command,
            is_labelled=self._is_labelled,
        )

    def _frame(self, one: _Open, source: RobotInput, key: MessageKey) -> Any:
        held = self._held[key]
        if 'frame' not in held.decoded:
            held.decoded['frame'] = self._values.frame_of(
                held.message.data, key.topic, held.message.type
            )
        frame = held.decoded['frame']
        wanted = self._shapes[one.plan.robot.digest][source.name]
        if shape_of(frame) != wanted:
            raise Malformed(
                'wrong_shape', f'{key.topic}: a frame of {shape_of(frame)} instead of {wanted}'
            )
        return for_lerobot(frame)

    def _command(self, one: _Open, key: MessageKey) -> Float64Array:
        robot, data = one.plan.robot.description, self._held[key].message.data
        return self._values.command_values(data, robot, key.topic)


def for_lerobot(frame: NDArray[Any]) -> Any:
    """
    Return a frame as LeRobot takes it: three channels of 8 bits, or an image of 16 bits, which it
    stores as PNG, without loss.
    """
    if frame.dtype != np.uint8:
        from PIL import Image

        return Image.fromarray(frame[:, :, 0].astype(np.uint16))
    return np.repeat(frame, 3, axis=2) if frame.shape[2] == 1 else frame


# numbers of a frame
STORED = ('uint8', 'uint16')


def camera_shapes(
    plan: EpisodePlan, indexes: Sequence[BagIndex], values: MessageValues
) -> dict[str, FrameShape]:
    """Return the frames of each camera of a plan with rows. Raises DatasetError."""
    found = {}
    for number, one in enumerate(plan.robot.inputs):
        if not one.camera:
            continue
        topic = plan.rows[0].messages[number].topic
        found[one.name] = _shape(topic, indexes, values)
        if found[one.name].dtype not in STORED:
            raise DatasetError(
                f'{topic} has depth as {found[one.name].dtype}, which LeRobot cannot store '
                'without loss; --depth-millimetres stores the nearest millimetre'
            )
    return found


def _shape(topic: str, indexes: Sequence[BagIndex], values: MessageValues) -> FrameShape:
    """Return the shape of most frames that can be decoded."""
    counts: Counter[FrameHead] = Counter()
    examples: dict[FrameHead, list[bytes]] = {}
    kind = ''
    for index in indexes:
        if topic in index.topics:
            known = index.topics[topic]
            kind = kind or known.type
            counts.update(known.heads)
            for head, messages in known.examples.items():
                examples.setdefault(head, []).extend(messages)
    why = 'none has the head of a frame'
    for head, _ in counts.most_common():
        for data in examples[head]:
            try:
                return shape_of(values.frame_of(data, topic, kind))
            except Malformed as error:
                why = str(error)
    raise DatasetError(f'{topic}: its frames cannot be read: {why}')


NumberedMessage = tuple[int, BagMessage]


def begins_of(indexes: Iterable[BagIndex]) -> list[BagBegin]:
    """Return the begins of the bags of all indexes; each counts from its own first bag."""
    begins: list[BagBegin] = []
    before: Counter[str] = Counter()
    for index in indexes:
        begins += [
            BagBegin(begin.received_ns, before + Counter(begin.first_numbers))
            for begin in index.begins
        ]
        before.update({topic: len(found.sent_ns) for topic, found in index.topics.items()})
    return begins


def inputs_of(
    plans: Iterable[EpisodePlan],
    bags: Sequence[Bag],
    begins: Sequence[BagBegin],
    count_bytes: CountBytes,
) -> Iterator[NumberedMessage]:
    """Yield the inputs of all bags that the plans need, with their numbers. Raises BagError."""
    for group in groups_of(plans, begins):
        streams = [_from_begin(bags[i], begins[i], count_bytes) for i in group]
        for _, found in heapq.merge(*streams, key=itemgetter(0)):
            if found is not None:
                yield found


def groups_of(plans: Iterable[EpisodePlan], begins: Sequence[BagBegin]) -> list[list[int]]:
    """Return the numbers of the bags that are needed, those of one episode in one group."""
    firsts: dict[str, list[int]] = {}
    groups: list[set[int]] = []
    for plan in plans:
        keys = {key for row in plan.rows for key in row.messages}
        needed = {_bag_of(key, begins, firsts) for key in keys}
        joined = [group for group in groups if group & needed]
        groups = [group for group in groups if not group & needed]
        groups.append(needed.union(*joined))
    return sorted(sorted(group) for group in groups)


def _bag_of(key: MessageKey, begins: Sequence[BagBegin], firsts: dict[str, list[int]]) -> int:
    if key.topic not in firsts:
        firsts[key.topic] = [begin.first_numbers.get(key.topic, 0) for begin in begins]
    return bisect_right(firsts[key.topic], key.number) - 1


def _from_begin(
    bag: Bag, begin: BagBegin, count_bytes: CountBytes
) -> Iterator[tuple[int, NumberedMessage | None]]:
    """Yield the begin of a bag, then its inputs, each with the latest time of reception so far."""
    latest_ns = begin.received_ns
    # of many bags each is opened when the others have come to its begin
    yield latest_ns, None
    for number, message in numbered(_counted(bag, count_bytes), begin.first_numbers):
        latest_ns = max(latest_ns, message.stamp_ns)
        yield latest_ns, (number, message)


def _counted(bag: Bag, count_bytes: CountBytes) -> Iterator[BagMessage]:
    for message in bag.read():
        count_bytes(len(message.data))
        yield message
