# SPDX-License-Identifier: Apache-2.0
"""A recorder in a process of its own: episodes, buttons, a killed sender, a fast topic."""

from __future__ import annotations

import json
from pathlib import Path
import time

import pytest
from rclpy.qos import QoSProfile
from std_msgs.msg import UInt32
from std_srvs.srv import Trigger
from support.middleware.blocked_port import block
from support.nodes.edge_rig import EDGE, EdgeRig
from support.nodes.played_robot import ROBOT
from support.nodes.recorder_process import LIMIT_S, recorder, run_episode, wait_until_heard
from support.nodes.service_asking import ask as ask_service
from support.tools.recorder_rig import bags, messages
from support.waiting import wait_until

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.shared_memory.ports import ports_of
from lerobot_serve.tools.bags.message import EXECUTED
from lerobot_serve_interfaces.msg import EpisodeOutcome

pytestmark = pytest.mark.long

JOINT_TOPIC, COMMAND_TOPIC = f'{ROBOT}/joint_states', f'{ROBOT}/command'


@pytest.fixture
def rig(edge_rig, tmp_path) -> EdgeRig:
    edge_rig.start_server()
    edge_rig.start(run_on_start=False)
    edge_rig.wait(lambda: edge_rig.seen.states, 'the state of the edge')
    return edge_rig


def executed(bag: Path) -> list:
    return [decode(ExecutedAction, each.data) for each in messages(bag, EXECUTED)]


def check_inputs(bag: Path) -> None:
    """Each step finds the message that it acted on, by its source timestamp."""
    sent = {each.sent_ns for each in messages(bag) if each.topic == JOINT_TOPIC}
    steps = executed(bag)
    assert steps
    missing = [each for each in steps if not {i for i in each.input_ids if i} <= sent]
    # joint states are best effort: on a busy machine one may be lost on its way to the recorder
    assert 10 * len(missing) <= len(steps), (len(missing), len(steps), missing[0].input_ids)


@pytest.mark.slow
def test_episodes_hold_all_that_the_robot_saw_and_did(rig, tmp_path):
    root = tmp_path / 'bags'
    with recorder(root, '--strategy', 'episodic') as process:
        wait_until_heard(rig, process)
        # from its end on, edge and recorder have found each other
        run_episode(rig, 'ep-0')
        rig.wait(lambda: bags(root), 'the first bag is whole')
        run_episode(rig, 'ep-1')
        run_episode(rig, 'ep-2', EpisodeOutcome.FAILURE)
        rig.wait(lambda: len(bags(root)) == 3, 'all bags are whole')
        with recorder(root, '--strategy', 'sentry') as second:
            assert second.process.wait(LIMIT_S) == 1
            assert 'in use by lerobot-serve record (process ' in second.log
        assert process.stop() == 0, process.log
    seen = {each.control_step: each for each in rig.seen.executed if each.episode_id}
    for bag, episode, outcome in zip(
        bags(root)[1:], ('ep-1', 'ep-2'), ('success', 'failure'), strict=True
    ):
        steps = executed(bag)
        assert {each.episode_id for each in steps} == {episode}
        wanted = [step for step, each in sorted(seen.items()) if each.episode_id == episode]
        assert [each.control_step for each in steps] == wanted
        topics = {each.topic for each in messages(bag)}
        assert {f'{EDGE}/robot_file', f'{EDGE}/state', COMMAND_TOPIC, JOINT_TOPIC} <= topics
        check_inputs(bag)
        about = json.loads((bag / 'intervals.json').read_text())
        assert (about['outcome'], about['episode_id']) == (outcome, episode)
        assert not about['intervention']


@pytest.mark.slow
def test_a_button_and_a_failure_save_highlights(rig, tmp_path):
    root = tmp_path / 'bags'
    words = ('--strategy', 'highlight', '--before', '3', '--after', '0.5', '--namespace', 'lab')
    with recorder(root, *words) as process:
        wait_until_heard(rig, process)
        run = rig.run(episode_id='ep')
        rig.wait_for_play(30)
        client = rig.node.create_client(Trigger, '/lab/recorder/save')
        answer = ask_service(rig.node, client, Trigger.Request())
        assert answer.message == 'saving 3 s before and 0.5 s after now'
        rig.wait(lambda: len(bags(root)) == 1, 'the highlight of the button')
        assert '_button_' in bags(root)[0].name
        rig.judge(EpisodeOutcome.FAILURE, 'ep')
        run.result()
        rig.wait(lambda: len(bags(root)) == 2, 'the highlight of the failure')
        assert process.stop() == 0, process.log
    for bag in bags(root):
        assert len(executed(bag)) >= 20
        assert {JOINT_TOPIC, f'{EDGE}/robot_file'} <= {each.topic for each in messages(bag)}


@pytest.mark.slow
def test_a_recorder_that_a_killed_sender_made_deaf_records_again(rig, tmp_path):
    with recorder(tmp_path / 'bags', '--strategy', 'episodic') as process:
        wait_until_heard(rig, process)
        for file, number in ports_of(process.process.pid).items():
            block(file, number)
        rig.wait(lambda: 'was blocked' in process.log, 'a port is renewed')
        run_episode(rig, 'after')
        rig.wait(lambda: bags(tmp_path / 'bags'), 'the bag of the episode')
        assert process.stop() == 0
    (bag,) = bags(tmp_path / 'bags')
    steps = [each.control_step for each in executed(bag)]
    assert steps == list(range(steps[0], steps[0] + len(steps))) and len(steps) >= 10


TOPIC = '/fast'
BURST, BURSTS, PERIOD_S = 20, 200, 0.02


@pytest.mark.slow
def test_a_topic_that_is_faster_than_the_waits_is_recorded(node, tmp_path):
    publisher = node.create_publisher(UInt32, TOPIC, QoSProfile(depth=1000))
    bag = tmp_path / 'bag'
    with recorder(bag, '--topic', TOPIC) as process:
        wait_until(lambda: f'recording {TOPIC} ' in process.log, 'it is recorded', LIMIT_S)
        wait_until(publisher.get_subscription_count, 'they have met', LIMIT_S)
        for number in range(BURST * BURSTS):
            publisher.publish(UInt32(data=number))
            if number % BURST == BURST - 1:
                time.sleep(PERIOD_S)
        assert process.stop() == 0, process.log
    found = [int.from_bytes(each.data[4:8], 'little') for each in messages(bag)]
    assert found == sorted(set(found))
    # a message a wait would be a tenth of them; a machine that stands still may lose some
    assert len(found) > 0.9 * BURST * BURSTS
