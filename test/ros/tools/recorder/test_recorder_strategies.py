# SPDX-License-Identifier: Apache-2.0
"""Strategies of a recorder with what triggers them for real: a person, a camera."""

from __future__ import annotations

from functools import partial
import json

import cv2
import numpy as np
import pytest
from rclpy.qos import QoSProfile
from sensor_msgs.msg import Image
from std_srvs.srv import Trigger
from support.nodes.edge_rig import EDGE, EdgeRig
from support.nodes.person import DEVICE, JOY, LEADER, Person
from support.nodes.played_robot import ROBOT, robot_yaml
from support.nodes.recorder_process import recorder, wait_until_recorded
from support.nodes.service_asking import ask as ask_service
from support.tools.recorder_rig import bags, messages

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.ros.image_messages import image_from_frame
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome

JOINT_TOPIC, CAMERA_TOPIC = f'{ROBOT}/joint_states', f'{ROBOT}/camera'
EXECUTED_TOPIC = f'{EDGE}/executed_action'
SIZE = 48, 64


def call(rig: EdgeRig, service: str) -> None:
    client = rig.node.create_client(Trigger, service)
    response = ask_service(rig.node, client, Trigger.Request())
    assert response.success, response.message
    rig.node.destroy_client(client)


def run_episode(rig: EdgeRig, episode_id: str, *, is_helped: bool = False) -> None:
    run = rig.run(episode_id=episode_id, task='reach')
    rig.wait_for_play()
    if is_helped:
        call(rig, f'{EDGE}/take_over')
        rig.wait_for_rung(EdgeState.RUNG_PERSON)
        call(rig, f'{EDGE}/hand_back')
        rig.wait_for_play()
    rig.judge(EpisodeOutcome.SUCCESS, episode_id)
    run.result()


@pytest.fixture
def person(edge_rig) -> Person:
    edge_rig.robot += DEVICE
    edge_rig.start_server()
    made = Person(edge_rig)
    edge_rig.start(run_on_start=False)
    edge_rig.wait(lambda: edge_rig.seen.states, 'the state of the edge')
    return made


@pytest.mark.slow
def test_dagger_keeps_the_episode_in_which_a_person_commanded(edge_rig, person, tmp_path):
    root = tmp_path / 'bags'
    with recorder(root, '--strategy', 'dagger') as process:
        wait_until_recorded(edge_rig, process, EXECUTED_TOPIC, JOINT_TOPIC, LEADER, JOY)
        for name in ('alone', 'helped', 'alone-again'):
            run_episode(edge_rig, name, is_helped=name == 'helped')
        edge_rig.wait(lambda: bags(root), 'the bag of the person')
        assert process.stop() == 0, process.log
    (bag,) = bags(root)
    assert '_helped_' in bag.name
    about = json.loads((bag / 'intervals.json').read_text())
    assert about['intervention']
    steps = [decode(ExecutedAction, each.data) for each in messages(bag, EXECUTED)]
    assert {'policy', 'person'} <= {each.source.word for each in steps}
    assert {LEADER, JOY} <= {each.topic for each in messages(bag)}


@pytest.mark.slow
def test_a_highlight_has_compressed_pictures_with_the_times_of_the_camera(edge_rig, tmp_path):
    camera = f'{{topic: {CAMERA_TOPIC}, max_age_s: 0.5}}'
    edge_rig.robot = robot_yaml(cameras=f'{{observation.images.front: {camera}}}')
    height, width = SIZE
    shape = f'joints=6,chunk=60,cameras=front:{height}x{width},fps=30'
    edge_rig.start_server(policy_path=shape)
    frame = np.zeros((height, width, 3), np.uint8)
    frame[:, : width // 2] = (250, 20, 20)
    # reliable and deep, so that a recorder that stood still for seconds misses none
    publisher = edge_rig.node.create_publisher(Image, CAMERA_TOPIC, QoSProfile(depth=200))
    edge_rig.node.create_timer(0.05, partial(publisher.publish, image_from_frame(frame, 'front')))
    edge_rig.start()
    edge_rig.wait_for_play()
    root = tmp_path / 'bags'
    with recorder(root, '--strategy', 'highlight', '--before', '2', '--after', '0.3') as process:
        wait_until_recorded(edge_rig, process, EXECUTED_TOPIC, JOINT_TOPIC, CAMERA_TOPIC)
        edge_rig.wait_for_play(20)
        call(edge_rig, '/recorder/save')
        edge_rig.wait(lambda: bags(root), 'the highlight of the button')
        assert process.stop() == 0, process.log
    (bag,) = bags(root)
    pictures = [each for each in messages(bag) if each.topic == f'{CAMERA_TOPIC}/compressed']
    assert len(pictures) >= 5
    jpeg = bytes(pictures[-1].data)
    jpeg = np.frombuffer(jpeg[jpeg.index(b'\xff\xd8') :], np.uint8)
    read = cv2.imdecode(jpeg, cv2.IMREAD_COLOR)[:, :, ::-1]
    assert read.shape == frame.shape
    assert np.abs(read.astype(int) - frame).mean() < 5
    # each control step still finds the picture that it acted on
    sent = {each.sent_ns for each in pictures}
    steps = [decode(ExecutedAction, each.data) for each in messages(bag, EXECUTED)]
    found = [bool(set(each.input_ids) & sent) for each in steps]
    # but for those whose picture came before the ring began
    assert all(found[found.index(True) :]), (len(found), [i for i, f in enumerate(found) if not f])
