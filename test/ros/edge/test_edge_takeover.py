# SPDX-License-Identifier: Apache-2.0
"""A person takes over a real edge controller with a leader arm, and hands it back."""

from __future__ import annotations

import numpy as np
import pytest
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from support.nodes.edge_rig import CALM, EDGE, EdgeRig
from support.nodes.person import DEVICE, LEADER, Person, POSE
from support.nodes.played_robot import HOME, JOINTS
from support.nodes.service_asking import ask as ask_service

from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

MAX_STEP = 0.15


@pytest.fixture
def person(edge_rig) -> Person:
    edge_rig.robot += DEVICE
    edge_rig.start_server()
    made = Person(edge_rig)
    edge_rig.start(**CALM)
    edge_rig.wait_for_play()
    return made


def call(rig: EdgeRig, service: str) -> tuple[bool, str]:
    """Call a service of the edge; return what it says."""
    client = rig.node.create_client(Trigger, f'{EDGE}/{service}')
    response = ask_service(rig.node, client, Trigger.Request())
    rig.node.destroy_client(client)
    return response.success, response.message


def commands(executed: list[ExecutedAction]) -> np.ndarray:
    return np.array([each.commanded for each in executed if len(each.commanded)])


def assert_no_jump(rig: EdgeRig) -> None:
    moves = np.abs(np.diff(commands(rig.seen.executed), axis=0))
    assert moves.max() <= MAX_STEP * (1 + 1e-5)


def wait_for_pose(rig: EdgeRig, pose: tuple[float, ...]) -> None:
    rig.wait(
        lambda: np.allclose(rig.seen.executed[-1].commanded, pose, atol=1e-5), f'the pose {pose}'
    )


def test_a_person_takes_over_moves_and_hands_back(edge_rig, person):
    assert edge_rig.seen.last.intervention == EdgeState.INTERVENTION_NONE
    done, text = call(edge_rig, 'take_over')
    assert done, text
    first = edge_rig.wait_for_rung(EdgeState.RUNG_PERSON)
    assert (first.source, first.episode_id) == (
        ExecutedAction.SOURCE_PERSON,
        edge_rig.seen.last.episode_id,
    )
    wait_for_pose(edge_rig, POSE)
    held = edge_rig.seen.executed[-1]
    # the policy continues, and each row says what it would have done
    assert len(held.policy_action) == len(JOINTS)
    # state, and the device
    assert len(held.input_ids) == 2
    assert all(held.input_ids)
    assert edge_rig.seen.last.intervention == EdgeState.INTERVENTION_COMMANDING
    epoch = max(each.seq for each in edge_rig.seen.played)
    done, text = call(edge_rig, 'hand_back')
    assert done, text
    begin = len(edge_rig.seen.executed)
    edge_rig.wait_for_play()
    later = [each for each in edge_rig.seen.executed[begin:] if each.seq]
    assert min(each.seq for each in later) > epoch
    assert edge_rig.seen.last.stalls == 0
    assert_no_jump(edge_rig)


def test_a_deadman_that_is_let_go_descends_the_ladder_until_it_is_held_again(edge_rig, person):
    call(edge_rig, 'take_over')
    wait_for_pose(edge_rig, POSE)
    person.is_held = False
    lost = edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    assert (lost.source, lost.reason) == (ExecutedAction.SOURCE_LADDER, 'ramp: person_lost')
    state = edge_rig.wait(
        lambda: edge_rig.seen.last.intervention == EdgeState.INTERVENTION_LOST
        and edge_rig.seen.last,
        'the state says so',
    )
    assert 'deadman released on joy' in state.reason
    played = len(edge_rig.seen.played)
    edge_rig.wait_for_ticks()
    assert len(edge_rig.seen.played) == played
    person.pose, person.is_held = HOME, True
    wait_for_pose(edge_rig, HOME)
    assert_no_jump(edge_rig)


def test_a_leader_that_falls_silent_or_sends_nonsense_commands_nothing(edge_rig, person):
    call(edge_rig, 'take_over')
    wait_for_pose(edge_rig, POSE)
    person.pose = (float('nan'), *HOME[1:])
    edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    edge_rig.wait(lambda: edge_rig.seen.drops().get('not_finite'), 'nonsense is counted')
    person.pose = HOME
    wait_for_pose(edge_rig, HOME)
    person.moves = False
    edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    assert np.isfinite(commands(edge_rig.seen.executed)).all()


def test_two_leaders_are_refused_and_stop_a_takeover(edge_rig, person):
    call(edge_rig, 'take_over')
    wait_for_pose(edge_rig, POSE)
    second = edge_rig.node.create_publisher(JointState, LEADER, qos.SENSOR)
    edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    done, text = call(edge_rig, 'take_over')
    assert not done
    assert text == (
        'Not taken over. more than one publisher on leader. Stop all but one, then call again'
    )
    edge_rig.node.destroy_publisher(second)
    edge_rig.wait_for_rung(EdgeState.RUNG_PERSON)


def test_a_takeover_survives_the_process(edge_rig, person):
    """Whoever holds the leader arm when the process dies is not met by a policy."""
    process = edge_rig.processes[-1]
    call(edge_rig, 'take_over')
    wait_for_pose(edge_rig, POSE)
    person.is_held = False
    edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    edge_rig.kill(process)
    begin = len(edge_rig.seen.executed)
    edge_rig.start()
    said = 'taken over before this start'
    edge_rig.wait(lambda: said in edge_rig.log(), 'it says so')
    # from here on, states are those of the new process
    edge_rig.seen.states.clear()
    edge_rig.wait(
        lambda: edge_rig.seen.states
        and edge_rig.seen.last.state == EdgeState.STREAMING
        and edge_rig.seen.last.control_steps > 20,
        'it is driven again',
    )
    assert edge_rig.seen.last.intervention == EdgeState.INTERVENTION_LOST
    assert not [each for each in edge_rig.seen.executed[begin:] if each.seq]
    person.pose, person.is_held = HOME, True
    wait_for_pose(edge_rig, HOME)
    done, text = call(edge_rig, 'hand_back')
    assert done, text
    edge_rig.wait_for_play()


def test_a_pause_stops_a_person_until_the_resume(edge_rig, person):
    call(edge_rig, 'take_over')
    edge_rig.wait_for_rung(EdgeState.RUNG_PERSON)
    done, text = call(edge_rig, 'pause')
    assert (done, text) == (
        True,
        'Paused. The robot slows down to rest. It follows the person again after ~/resume',
    )
    # the person continues, far away
    person.pose = tuple(position - 0.6 for position in HOME)
    edge_rig.wait_for_rung(EdgeState.RUNG_HOLD)
    begin = len(edge_rig.seen.executed)
    edge_rig.wait_for_ticks()
    held = edge_rig.seen.executed[begin:]
    assert {each.source for each in held} == {ExecutedAction.SOURCE_OPERATOR}
    assert len({tuple(each.commanded) for each in held}) == 1
    assert edge_rig.seen.last.intervention == EdgeState.INTERVENTION_LOST
    assert edge_rig.seen.last.reason == 'paused; taken over by a person'
    done, text = call(edge_rig, 'take_over')
    assert (
        done,
        text.startswith('Already taken over. Paused until ~/resume. Then: The robot'),
    ) == (
        True,
        True,
    )
    done, text = call(edge_rig, 'resume')
    assert (done, text.startswith('Resumed. The robot follows leader while')) == (True, True)
    wait_for_pose(edge_rig, person.pose)
    assert_no_jump(edge_rig)


def test_a_second_robot_in_the_state_folder_is_refused_with_the_first(edge_rig):
    """Or a resume of one would end the pause of the other."""
    folder = edge_rig.folder / 'shared'
    first = edge_rig.start(state_folder=folder)
    edge_rig.wait_for_ticks(1)
    second = edge_rig.start(namespace='/robot_2', state_folder=folder)
    assert second.wait(60) == 1
    assert (
        f'{folder} is in use by /robot_1/edge_controller (process {first.pid} on '
        in edge_rig.log('edge_robot_2')
    )
    # the lock ends with its process
    edge_rig.kill(first)
    edge_rig.start(namespace='/robot_2', state_folder=folder)
    edge_rig.wait(lambda: 'edge controller robot_2' in edge_rig.log('edge_robot_2'), 'it starts')
