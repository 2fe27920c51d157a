# SPDX-License-Identifier: Apache-2.0
"""The shapes of frames, and how rows get their messages; without LeRobot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image

from benchmarks.recording.example_bag import EdgeBag, image, Step
from lerobot_serve.tools.bags.message import BagMessage, head_of
from lerobot_serve.tools.bags.metadata import BagTopic
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.dataset.bag_index import index_bags
from lerobot_serve.tools.dataset.episodes import DatasetError, EpisodePlan
from lerobot_serve.tools.dataset.executed import plan_recorded
from lerobot_serve.tools.dataset.features import FrameShape
from lerobot_serve.tools.dataset.feeding import (
    begins_of,
    camera_shapes,
    groups_of,
    inputs_of,
    RowFeed,
)
from lerobot_serve.tools.dataset.ros.message_values import MessageValues

FRONT = 'observation.images.front'
VALUES = MessageValues()
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
    shapes = {plans[0].robot.digest: camera_shapes(plans[0], [index], VALUES)}
    feed, sink = RowFeed(plans, shapes, VALUES, is_labelled=False), ListSink()
    feed.run(inputs_of(plans, [Bag(folder)], index.begins, lambda _: None), sink)
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
    assert camera_shapes(plan, [index], VALUES)[FRONT] == FrameShape(48, 64, 3, 'uint8')


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
        camera_shapes(next(plan_recorded(index)), [index], VALUES)


def copied(folder: Path, messages: Iterable[BagMessage]) -> Bag:
    part = EdgeBag(folder, robot_file='')
    for message in messages:
        part.writer.add_topic(BagTopic(message.topic, message.type))
        part.writer.write(message)
    return Bag(part.close())


class HeldSink(ListSink):
    """Notes how many messages are in flight."""

    feed: RowFeed
    most = 0

    def add(self, plan: EpisodePlan, row: dict) -> None:
        super().add(plan, row)
        self.most = max(self.most, len(self.feed._held))


@pytest.mark.parametrize('cameras_first', [True, False])
def test_of_two_recorders_of_one_robot_only_what_is_in_flight_is_held(tmp_path, cameras_first):
    bag = EdgeBag(tmp_path / 'all')
    for number in range(3):
        bag.episode(f'episode_{number}', 20)
    messages = list(Bag(bag.close()).read())
    bags = [
        copied(tmp_path / 'cameras', (m for m in messages if 'camera' in m.topic)),
        copied(tmp_path / 'others', (m for m in messages if 'camera' not in m.topic)),
    ]
    bags = bags if cameras_first else bags[::-1]
    index = index_bags(bags, lambda _: None)
    plans = list(plan_recorded(index))
    assert groups_of(plans, index.begins) == [[0, 1]]
    shapes = {plans[0].robot.digest: camera_shapes(plans[0], [index], VALUES)}
    sink = HeldSink()
    sink.feed = feed = RowFeed(plans, shapes, VALUES, is_labelled=False)
    feed.run(inputs_of(plans, bags, index.begins, lambda _: None), sink)
    assert sink.ended == [f'episode_{number}' for number in range(3)]
    assert [len(steps) for steps in sink.rows.values()] == [20] * 3
    # of 180 messages of inputs
    assert sink.most <= 6


def silent(step: Step) -> None:
    step.commanded = step.commanded[:0]


def test_bags_of_one_episode_are_opened_one_by_one_and_others_apart(tmp_path, monkeypatch):
    bags = []
    for number, name in enumerate(('continued', 'continued', 'other', 'without_a_row')):
        bag = EdgeBag(tmp_path / f'bag_{number}')
        bag.clock_ns += number * 10**9
        bag._control_step = 100 * number
        bag.episode(name, 5, **({'change': silent} if number == 3 else {}))
        bags.append(Bag(bag.close()))
    index = index_bags(bags, lambda _: None)
    plans = [plan for plan in plan_recorded(index) if plan.rows]
    assert groups_of(plans, index.begins) == [[0, 1], [2]]
    assert begins_of([index]) == index.begins
    # as with --robot: each bag has an index of its own
    alone = [index_bags([bag], lambda _: None) for bag in bags]
    assert begins_of(alone) == index.begins
    read, opened = Bag.read, []

    def note(bag):
        opened.append(bag.path.name)
        return read(bag)

    monkeypatch.setattr(Bag, 'read', note)
    found = []
    for number, message in inputs_of(plans, bags, index.begins, lambda _: None):
        assert index.topics[message.topic].received_ns[number] == message.stamp_ns
        found.append((message.stamp_ns, len(opened)))
    assert opened == ['bag_0', 'bag_1', 'bag_2']
    assert found == sorted(found)
    second_ns = index.begins[1].received_ns
    assert {count for stamp_ns, count in found if stamp_ns < second_ns} == {1}


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
