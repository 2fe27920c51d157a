# SPDX-License-Identifier: Apache-2.0
"""The person at the leader arm of sim_robot, and what counts as reached, changed while it runs."""

from __future__ import annotations

import pytest
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger
from support.nodes.service_asking import ask

from lerobot_serve.ros import qos
from lerobot_serve.sim.arm import WRIST
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome

ROBOT = '/robot_1'
EDGE = f'{ROBOT}/edge_controller'
SIZE = {'image_height': 16, 'image_width': 16}


class PlayedEdge:
    """An edge controller whose policy does nothing; it says when a person has taken over."""

    def __init__(self, node) -> None:
        self.calls: list[str] = []
        self._states = node.create_publisher(EdgeState, f'{EDGE}/state', qos.STATE)
        for name in ('take_over', 'hand_back', 'reset'):
            node.create_service(Trigger, f'{EDGE}/{name}', self._serve(name))

    def _serve(self, name: str):
        def serve(_: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            self.calls.append(name)
            if name != 'reset':
                commanding = EdgeState.INTERVENTION_COMMANDING
                none = EdgeState.INTERVENTION_NONE
                now = commanding if name == 'take_over' else none
                self._states.publish(EdgeState(client_id='robot_1', intervention=now))
            response.success = True
            return response

        return serve


@pytest.fixture
def edge(node) -> PlayedEdge:
    return PlayedEdge(node)


@pytest.fixture
def change(node):
    """Changes parameters of the robot; returns why each is refused, empty for none."""
    client = node.create_client(SetParameters, f'{ROBOT}/sim_robot/set_parameters')

    def change(**values: float | bool) -> list[str]:
        wanted = [
            Parameter(name, value=value).to_parameter_msg() for name, value in values.items()
        ]
        results = ask(node, client, SetParameters.Request(parameters=wanted)).results
        return [result.reason for result in results]

    return change


@pytest.mark.slow
def test_the_person_corrects_an_attempt_and_hands_back_at_its_end(
    processes, edge, change, wait_until
):
    processes.start(
        'robot', 'sim_robot', namespace=ROBOT, leader=True, attempt_timeout_s=4.0, **SIZE
    )
    wait_until(lambda: 'reset' in edge.calls, 'an attempt ends')
    assert set(edge.calls) == {'reset'}
    assert change(leader_corrects=True) == ['']
    wait_until(lambda: 'hand_back' in edge.calls, 'the person has handed back', 60.0)
    begin = edge.calls.index('take_over')
    assert edge.calls[begin : edge.calls.index('hand_back') + 1] in (
        ['take_over', 'reset', 'hand_back'],
        ['take_over', 'hand_back'],
    )


def test_a_correction_without_a_leader_arm_is_refused(processes, change, log_of):
    processes.start('robot', 'sim_robot', namespace=ROBOT, **SIZE)
    (reason,) = change(leader_corrects=True)
    assert (
        'leader_corrects needs a leader arm and an edge controller: set leader to true' in reason
    )
    child = processes.start('other', 'sim_robot', leader_corrects=True, **SIZE)
    assert child.wait(30) == 1
    assert 'leader_corrects needs a leader arm' in log_of('other')


def test_the_wrist_of_the_leader_arm_is_turned(processes, node, change, wait_until):
    wrists: list[float] = []
    topic = f'{ROBOT}/leader/joint_states'
    node.create_subscription(
        JointState, topic, lambda joints: wrists.append(joints.position[WRIST]), qos.SENSOR
    )
    processes.start('robot', 'sim_robot', namespace=ROBOT, leader=True, **SIZE)
    wait_until(lambda: wrists, 'the leader arm is heard')
    assert abs(wrists[-1]) < 0.1
    assert change(leader_offset_rad=1.5) == ['']
    # the robot stands still, so the leader arm stays ahead of it by its first step
    wait_until(lambda: wrists[-1] > 0.01, 'it is turned')


def test_what_counts_as_reached_changes_while_it_runs(processes, node, change, wait_until):
    outcomes: list[int] = []
    topic = f'{ROBOT}/episode_outcome'
    node.create_subscription(
        EpisodeOutcome, topic, lambda message: outcomes.append(message.outcome), qos.OUTCOME
    )
    # a new target is at least 6 cm away, and the arm does not move
    given = {'reach_m': 0.001, 'attempt_timeout_s': 0.5}
    processes.start('robot', 'sim_robot', namespace=ROBOT, **given, **SIZE)
    wait_until(lambda: len(outcomes) >= 4, 'attempts end')
    assert set(outcomes) == {EpisodeOutcome.FAILURE}
    assert change(reach_m=0.1) == ['']
    wait_until(lambda: EpisodeOutcome.SUCCESS in outcomes, 'a near target counts', 60.0)
    (reason,) = change(reach_m=0.5)
    assert 'reach_m' in reason and '0.1' in reason
