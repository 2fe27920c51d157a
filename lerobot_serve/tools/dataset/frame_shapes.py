# SPDX-License-Identifier: Apache-2.0
"""The shape of the frames of each camera: that of most messages of its topic. One thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.dataset.features import FrameShape, shape_of
from lerobot_serve.tools.dataset.feeding import MessageValues
from lerobot_serve.tools.dataset.plans.bag_index import BagIndex
from lerobot_serve.tools.dataset.plans.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.plans.frame_heads import FrameHead

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
