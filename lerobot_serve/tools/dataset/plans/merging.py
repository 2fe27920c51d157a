# SPDX-License-Identifier: Apache-2.0
"""
The second pass over bags: the inputs in the order of their reception. One thread.

Where one recorder has the cameras and another one the joints, one bag after the other would hold
all frames until the last bag is read. Bags that no episode needs together are read one after the
other, as each open episode has encoders of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
import heapq
from operator import itemgetter

from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset.plans.bag_index import BagBegin, BagIndex, numbered
from lerobot_serve.tools.dataset.plans.episodes import EpisodePlan, MessageKey
from lerobot_serve.versions.file_hash import CountBytes

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
