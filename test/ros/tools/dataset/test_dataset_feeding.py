# SPDX-License-Identifier: Apache-2.0
"""The shapes of frames, and how rows get their messages; without LeRobot."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from benchmarks.recording.example_bag import EdgeBag, image
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset.features import FrameShape
from lerobot_serve.tools.dataset.feeding import RowFeed
from lerobot_serve.tools.dataset.frame_shapes import camera_shapes
from lerobot_serve.tools.dataset.plans.bag_index import index_bags
from lerobot_serve.tools.dataset.plans.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.plans.executed import plan_recorded
from lerobot_serve.tools.dataset.plans.frame_heads import head_of
from lerobot_serve.tools.dataset.ros import message_values

FRONT = 'observation.images.front'
SMALL = np.zeros((24, 32, 3), np.uint8)


class ListSink:
    """Keeps the control steps of each episode."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.ended: list[str] = []
        self.given_up: list[str] = []

    def add(self, plan: EpisodePlan, row: dict) -> None:
        step = int(row['complementary_info.control_step'][0])
        self.rows.setdefault(plan.episode_id, []).append(step)

    def end(self, plan: EpisodePlan) -> None:
        self.ended.append(plan.episode_id)

    def give_up(self, plan: EpisodePlan) -> None:
        self.given_up.append(plan.episode_id)


def fed(folder: Path, unusable=frozenset()) -> tuple[RowFeed, ListSink]:
    index = index_bags([Bag(folder)], lambda _: None)
    plans = list(plan_recorded(index, unusable=unusable))
    shapes = {plans[0].robot.digest: camera_shapes(plans[0], [index], message_values)}
    feed, sink = RowFeed(plans, shapes, message_values, is_labelled=False), ListSink()
    feed.run(Bag(folder).read(), sink)
    return feed, sink


@pytest.mark.parametrize('compressed', [False, True])
def test_one_pass_finds_all_messages_that_cannot_be_used(tmp_path, compressed):
    """The first frames are odd; the shape is that of most frames."""

    def change(step):
        step.compressed = compressed
        if step.number in (0, 1, 4):
            step.frames['front'] = SMALL
        if step.number == 6:
            step.positions = step.positions[:0]

    bag = EdgeBag(tmp_path / 'bag')
    put = bag.put

    def put_nameless(topic, message, **options):
        if topic.endswith('joint_states') and not message.position:
            message.name = []
        return put(topic, message, **options)

    bag.put = put_nameless
    bag.episode('odd', 9, change=change)
    bag.episode('whole', 3, change=lambda step: setattr(step, 'compressed', compressed))
    feed, sink = fed(bag.close())
    assert sorted(key.number for key in feed.unusable) == [0, 1, 4, 6]
    assert (sink.given_up, sink.ended) == (['odd'], ['whole'])
    again, sink = fed(tmp_path / 'bag', frozenset(feed.unusable))
    assert not again.unusable and sink.ended == ['odd', 'whole']
    assert sink.rows['odd'] == [2, 3, 5, 7, 8]


def test_frames_that_cannot_be_decoded_are_passed_over_for_the_shape(tmp_path):
    def damage(step):
        step.compressed = True

    bag = EdgeBag(tmp_path / 'bag')
    put = bag.put

    def put_damaged(topic, message, **options):
        if topic.endswith('front/image_raw/compressed') and len(damaged) < 2:
            damaged.append(1)
            # the head is whole, and nothing follows
            message.data = message.data[: 4 if len(damaged) == 1 else 200]
        return put(topic, message, **options)

    damaged: list[int] = []
    bag.put = put_damaged
    bag.episode('one', 6, change=damage)
    index = index_bags([Bag(bag.close())], lambda _: None)
    plan = next(plan_recorded(index))
    assert camera_shapes(plan, [index], message_values)[FRONT] == FrameShape(48, 64, 3, 'uint8')


def test_a_camera_without_any_frame_is_refused(tmp_path):
    def damage(step):
        step.compressed = True

    bag = EdgeBag(tmp_path / 'bag')
    put = bag.put

    def put_damaged(topic, message, **options):
        if topic.endswith('front/image_raw/compressed'):
            message.data = message.data[:4]
        return put(topic, message, **options)

    bag.put = put_damaged
    bag.episode('one', 6, change=damage)
    index = index_bags([Bag(bag.close())], lambda _: None)
    with pytest.raises(DatasetError, match='its frames cannot be read'):
        camera_shapes(next(plan_recorded(index)), [index], message_values)


@pytest.mark.parametrize('ending', ['.jpg', '.png'])
def test_the_head_of_a_compressed_frame_has_its_size(ending):
    data = cv2.imencode(ending, np.zeros((30, 50, 3), np.uint8))[1].tobytes()
    message = CompressedImage(format=ending[1:], data=data)
    message.header.frame_id = 'abc'
    raw = serialize_message(message)
    head = head_of('sensor_msgs/msg/CompressedImage', raw)
    assert head is not None and (head.height, head.width) == (30, 50)
    for size in range(len(raw)):
        # no error for a message of any length
        head_of('sensor_msgs/msg/CompressedImage', raw[:size])


def test_the_head_of_a_raw_frame_has_its_size_and_encoding():
    raw = serialize_message(image(np.zeros((30, 50), np.uint16)))
    assert head_of('sensor_msgs/msg/Image', raw) == (30, 50, '16UC1')
    assert head_of('sensor_msgs/msg/Image', serialize_message(Image())[:9]) is None
    assert head_of('sensor_msgs/msg/JointState', raw) is None
