# SPDX-License-Identifier: Apache-2.0
"""When episodes begin and end, what their bags hold, and which of them stay."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.recorder_rig import bags, CAMERA, CAMERA_TYPE, JOINTS, messages, RecorderRig

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.records import ExecutedAction
from lerobot_serve.tools.bags.message import EDGE_STATE, EXECUTED, TEXT_TYPE
from lerobot_serve.tools.bags.reader import Bag
from lerobot_serve.tools.recorder.episodic import (
    EpisodeEvent,
    EpisodePhase,
    NEXT,
    RUNNING,
)
from lerobot_serve.tools.recorder.options import RecordingRules

OUTCOME_TYPE = 'lerobot_serve_interfaces/msg/EpisodeOutcome'


@pytest.fixture
def rig(tmp_path):
    rig = RecorderRig(tmp_path / 'bags')
    yield rig
    rig.writer.close()


@pytest.fixture
def dagger(tmp_path):
    rig = RecorderRig(tmp_path / 'bags', RecordingRules(only_with_person=True))
    yield rig
    rig.writer.close()


def steps(bag) -> list[int]:
    return [decode(ExecutedAction, each.data).control_step for each in messages(bag, EXECUTED)]


def intervals(bag) -> dict:
    return json.loads((bag / 'intervals.json').read_text())


def test_the_table_has_every_event_in_every_phase():
    assert {phase: set(events) for phase, events in NEXT.items()} == {
        phase: set(EpisodeEvent) for phase in EpisodePhase
    }


@given(st.lists(st.sampled_from(EpisodeEvent)))
def test_a_closed_episode_stays_closed_and_an_ended_one_never_runs(events):
    phase = EpisodePhase.RUNNING
    for event in events:
        before, phase = phase, NEXT[phase][event]
        assert before is not EpisodePhase.CLOSED or phase is EpisodePhase.CLOSED
        assert before in RUNNING or phase not in RUNNING
        if event is EpisodeEvent.GONE:
            assert phase is EpisodePhase.CLOSED


@pytest.mark.parametrize('phase', [EpisodePhase.ENDED, EpisodePhase.RUNNING])
def test_only_an_outcome_or_time_completes(phase):
    end = [EpisodeEvent.RUNS_NOT, EpisodeEvent.OUTCOME, EpisodeEvent.SETTLED]
    for event in end:
        phase = NEXT[phase][event]
    assert phase is EpisodePhase.CLOSED


def test_each_episode_is_a_bag_of_its_own(rig):
    rig.run('ep-1')
    rig.run('ep-2')
    rig.report('')
    rig.wait(3.0)
    first, second = bags(rig.root)
    assert first.name.startswith('arm_1_ep-1_')
    assert (steps(first), steps(second)) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert not list(rig.root.glob('*.recording'))
    # what a late subscriber gets is in each
    for bag in (first, second):
        assert len(list(messages(bag, TEXT_TYPE))) == 1
        assert list(messages(bag, EDGE_STATE))
    assert intervals(first)['ended'] == 'not running'


def test_the_inputs_before_the_first_step_are_in_the_bag(rig):
    rig.report('')
    rig.send(CAMERA, CAMERA_TYPE, b'old frame')
    rig.joints(b'too old')
    rig.wait(2.0)
    rig.joints(b'newest')
    rig.wait(0.1)
    rig.act('ep')
    rig.writer.close()
    (bag,) = bags(rig.root)
    found = [each.data for each in messages(bag) if each.topic in (JOINTS, CAMERA)]
    # an input that seldom comes is there too, as old as it is
    assert found == [b'old frame', b'newest']


def test_stragglers_of_the_last_step_and_the_outcome_are_in_the_bag(rig):
    rig.run('ep')
    rig.report('')
    rig.joints(b'straggler')
    rig.wait(0.75)
    rig.joints(b'later')
    rig.judge('ep', 'failure')
    rig.wait(0.75)
    (bag,) = bags(rig.root)
    found = [each.data for each in messages(bag)]
    assert b'straggler' in found
    assert b'later' not in found
    assert len(list(messages(bag, OUTCOME_TYPE))) == 1
    assert intervals(bag)['outcome'] == 'failure'


def test_an_outcome_of_another_episode_or_robot_is_not_its_own(rig):
    rig.run('ep')
    rig.judge('other')
    rig.judge('ep', client_id='arm_2')
    rig.report('')
    rig.wait(1.0)
    assert not bags(rig.root)
    rig.wait(1.5)
    (bag,) = bags(rig.root)
    assert not list(messages(bag, OUTCOME_TYPE))
    assert intervals(bag)['outcome'] == ''


def test_reports_out_of_order_end_nothing(rig):
    before_ns = rig.stamp_ns
    rig.wait(0.1)
    rig.act('ep-1')
    # a state from before the first step
    rig.report('', stamp_ns=before_ns)
    # longer than an ended episode waits for its outcome
    rig.run('ep-1', 40)
    rig.act('ep-2')
    rig.report('ep-1', stamp_ns=before_ns)
    rig.writer.close()
    first, second = bags(rig.root)
    assert (len(steps(first)), len(steps(second))) == (41, 1)


def test_actions_that_a_state_has_overtaken_are_in_the_bag(rig):
    before_ns = rig.stamp_ns
    rig.wait(0.5)
    rig.report('ep')
    for number in range(10):
        rig.act('ep', stamp_ns=before_ns + number)
    rig.writer.close()
    (bag,) = bags(rig.root)
    assert steps(bag) == list(range(1, 11))


def test_a_state_alone_begins_no_episode(rig):
    rig.report('the next one')
    rig.joints()
    rig.writer.close()
    assert not bags(rig.root)


def test_a_clock_that_steps_back_ends_nothing(rig):
    rig.run('ep-1')
    rig.wall_ns -= 3600 * 10**9
    rig.run('ep-1')
    bag = rig.end_episode()
    assert len(steps(bag)) == 10


def test_a_robot_that_disappears_ends_its_episode(rig):
    rig.run('ep')
    rig.wait(4.5)
    assert not bags(rig.root)
    rig.wait(1.0)
    (bag,) = bags(rig.root)
    assert intervals(bag)['ended'] == 'gone'
    assert len(steps(bag)) == 5


def test_an_episode_of_one_row(rig):
    rig.act('ep')
    bag = rig.end_episode()
    assert steps(bag) == [1]


def test_two_robots_do_not_mix(rig):
    other = '/two/edge_controller'
    rig.introduce(other, 'arm_2')
    for _ in range(3):
        rig.act('a')
        rig.act('b', other, client_id='arm_2')
        rig.joints()
        rig.send('/two/joint_states', 'sensor_msgs/msg/JointState', b'two')
        # both robots name this camera
        rig.send(CAMERA, CAMERA_TYPE, b'frame')
        rig.wait(0.1)
    rig.writer.close()
    first, second = bags(rig.root)
    topics = [{each.topic for each in messages(bag)} for bag in (first, second)]
    assert JOINTS in topics[0] - topics[1]
    assert '/two/joint_states' in topics[1] - topics[0]
    assert CAMERA in topics[0] & topics[1]
    assert (steps(first), steps(second)) == ([1, 3, 5], [2, 4, 6])


def test_names_are_safe_and_nothing_is_overwritten(rig):
    evil = '../../etc/passwd'
    rig.introduce(client_id=evil)
    for number in range(2):
        # the same id in the same second, after a while that was long enough to forget it
        rig.writer._robots.clear()
        rig.act('../x', client_id=evil)
        rig.report('', client_id=evil)
        rig.writer.end()
        assert len(bags(rig.root)) == number + 1
    assert [each.parent for each in bags(rig.root)] == [rig.root] * 2


def test_one_robot_only(tmp_path):
    rig = RecorderRig(tmp_path, wanted='arm_2')
    rig.introduce('/two/edge_controller', 'arm_2')
    rig.act('a')
    rig.act('b', '/two/edge_controller', client_id='arm_2')
    rig.stop()
    (bag,) = bags(rig.root)
    assert bag.name.startswith('arm_2_b_')


def test_dagger_keeps_episodes_with_a_person(dagger):
    dagger.run('alone')
    dagger.run('helped', 2)
    dagger.run('helped', 3, source='person')
    dagger.run('helped', 1)
    bag = dagger.end_episode()
    assert bag.name.startswith('arm_1_helped_')
    assert not list(dagger.root.glob('*alone*'))
    assert dagger.writer.discarded == 1
    found = intervals(bag)
    assert [
        (each['source'], each['first_step'], each['last_step']) for each in found['intervals']
    ] == [('policy', 6, 7), ('person', 8, 10), ('policy', 11, 11)]
    assert found['intervention'] is True


def test_steps_and_policies_are_counted(rig):
    rig.run('ep', 2, policy='')
    for number in range(20):
        rig.act('ep', policy=f'p@{number % 18}')
    rig.run('ep', 3, source='person')
    bag = rig.end_episode()
    found = intervals(bag)
    assert (found['control_steps'], found['control_steps_person']) == (25, 3)
    # distinct, in their order, and not more than an announcement can name
    assert found['policies'] == [f'p@{number}' for number in range(16)]


def test_dagger_keeps_what_came_before_a_robot_was_gone(dagger):
    dagger.run('taught')
    dagger.wait(6.0)
    dagger.run('taught', 3, source='person')
    dagger.report('')
    dagger.wait(3.0)
    assert [steps(bag) for bag in bags(dagger.root)] == [[1, 2, 3, 4, 5], [6, 7, 8]]
    assert [intervals(bag)['ended'] for bag in bags(dagger.root)] == ['gone', 'not running']
    assert dagger.writer.discarded == 0


def test_dagger_keeps_what_runs_when_it_ends(dagger):
    dagger.run('taught')
    dagger.writer.close()
    (bag,) = bags(dagger.root)
    assert intervals(bag)['ended'] == 'recorder stopped'


def test_the_end_of_the_recorder_keeps_what_runs(rig):
    rig.run('ep')
    rig.writer.close()
    (bag,) = bags(rig.root)
    assert intervals(bag)['ended'] == 'recorder stopped'
    assert Bag(bag).is_complete


def test_malformed_messages_do_no_harm(rig):
    rig.run('ep')
    for topic in ('state', 'executed_action', 'robot_file'):
        for raw in (b'', b'\x00\x01\x00\x00', b'\xff' * 40):
            kind = rig.writer.topics[f'/arm/edge_controller/{topic}'].type
            rig.send(f'/arm/edge_controller/{topic}', kind, raw)
    rig.run('ep')
    bag = rig.end_episode()
    assert len(steps(bag)) == 10
    assert rig.lines
