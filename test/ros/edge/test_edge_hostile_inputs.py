# SPDX-License-Identifier: Apache-2.0
"""What is not a message, other commanders, and what its servers do not know: real processes."""

from __future__ import annotations

import signal
import subprocess

from sensor_msgs.msg import JointState
from support.nodes.edge_rig import EdgeRig, LIMIT_S
from support.nodes.played_robot import ROBOT
from trajectory_msgs.msg import JointTrajectory

from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome, ExecutedAction

NO_MESSAGES = (
    b'\x00\x01\x00\x00',
    b'\x00\x01\x00\x00\x01\x00\x00\x00\x02',
    b'\x00\x01\x00\x00' + 40 * b'\xff',
)


def test_what_is_no_message_is_counted_and_the_edge_lives(edge_rig):
    edge_rig.start_server()
    edge = edge_rig.start()
    edge_rig.wait_for_play()
    for kind, topic, profile in (
        (JointState, f'{ROBOT}/joint_states', qos.SENSOR),
        (EpisodeOutcome, f'{ROBOT}/episode_outcome', qos.OUTCOME),
    ):
        publisher = edge_rig.node.create_publisher(kind, topic, profile)
        edge_rig.wait(publisher.get_subscription_count, 'the edge listens')
        before = edge_rig.seen.drops().get('undecodable', 0)

        def counted(publisher=publisher, before=before) -> bool:
            for raw in NO_MESSAGES:
                publisher.publish(raw)
            return edge_rig.seen.drops().get('undecodable', 0) > before

        edge_rig.wait(counted, f'{topic} is counted')
        edge_rig.node.destroy_publisher(publisher)
    edge_rig.wait_for_play()
    assert edge.poll() is None
    assert 'Traceback' not in edge_rig.log()
    # logged, and not once for each
    edge_rig.wait(lambda: 'undecodable' in edge_rig.log(), 'it is logged')


def test_a_second_edge_on_the_command_topic_does_not_begin(edge_rig):
    edge_rig.start_server()
    edge_rig.start()
    edge_rig.wait_for_play()
    second = start_second(edge_rig)
    assert second.wait(LIMIT_S) == 1
    assert f'error: {ROBOT}/edge_controller already publishes' in edge_rig.log('second')
    edge_rig.wait_for_play()
    assert not edge_rig.seen.last.paused


def test_a_second_edge_that_is_found_late_ends_and_the_first_goes_on(edge_rig):
    edge_rig.start_server()
    first = edge_rig.start()
    edge_rig.wait_for_play()
    # one that does not run is not found
    first.send_signal(signal.SIGSTOP)
    second = start_second(edge_rig)
    edge_rig.wait(lambda: '-> STREAMING' in edge_rig.log('second'), 'the second one plays')
    first.send_signal(signal.SIGCONT)
    assert second.wait(LIMIT_S) == 1
    assert f'error: {ROBOT}/edge_controller already publishes' in edge_rig.log('second')
    # the server may take long to find one again that was stopped for longer than its lease
    assert first.poll() is None
    assert 'paused' not in edge_rig.log()


def start_second(rig: EdgeRig) -> subprocess.Popen:
    """Start another edge controller for the robot of the first one."""
    return rig.fleet.start(
        'second',
        'edge_controller',
        namespace='/elsewhere',
        robot_file=absolute(rig),
        client_id='robot_2',
    )


def absolute(rig: EdgeRig) -> object:
    """Return a file of the same robot, whose topics have their full names."""
    text = rig.robot
    for topic in ('joint_states', 'command', 'camera'):
        text = text.replace(f'topic: {topic}', f'topic: {ROBOT}/{topic}')
    file = rig.folder / 'absolute.yaml'
    file.write_text(text)
    return file


def become_rival(rig: EdgeRig) -> str:
    """Let the test's node look like an edge controller of the same robot; return its name."""
    (topic,) = {
        name
        for name, kinds in rig.node.get_topic_names_and_types()
        if name.startswith(f'{ROBOT}/') and 'command' in name
    }
    # an edge controller is known by what it publishes beside its commands
    name = rig.node.get_fully_qualified_name()
    rig.node.create_publisher(ExecutedAction, f'{name}/executed_action', qos.EXECUTED_ACTION)
    rig.node.create_publisher(JointTrajectory, topic, qos.COMMAND)
    return name


def test_an_edge_that_has_not_commanded_ends_when_a_rival_appears(edge_rig):
    edge = edge_rig.start(run_on_start=False)
    edge_rig.wait(lambda: edge_rig.seen.states, 'it has begun')
    name = become_rival(edge_rig)
    assert edge.wait(LIMIT_S) == 1
    log = edge_rig.log()
    assert f'error: {name} already publishes' in log
    assert 'Traceback' not in log


def test_a_rival_that_appears_later_pauses_the_robot_and_is_named(edge_rig):
    edge_rig.start_server()
    edge_rig.start()
    edge_rig.wait_for_play()
    name = become_rival(edge_rig)
    state = edge_rig.wait_for_state(
        EdgeState.STREAMING, EdgeState.DEGRADED, EdgeState.STALLED, reason='commands'
    )
    assert name in state.reason
    edge_rig.wait(lambda: edge_rig.seen.last.paused, 'it is paused')


def test_the_feedback_of_a_run_goes_through_the_real_wiring(edge_rig):
    edge_rig.start_server()
    edge_rig.start(run_on_start=False)
    first = edge_rig.run(episode_id='ep-1')
    edge_rig.wait(
        lambda: first.feedback and first.feedback[-1].actions_executed > 20, 'it has played'
    )
    edge_rig.judge(EpisodeOutcome.SUCCESS, 'ep-1')
    _, result = first.result()
    assert result.actions_executed > 20
    # a chunk lasts 2 s, and of what is left something was told
    assert 0.5 < max(each.queue_remaining_s for each in first.feedback) <= 2.5
    second = edge_rig.run(episode_id='ep-2')
    edge_rig.wait(lambda: second.feedback, 'feedback')
    # in this episode, not since start
    assert second.feedback[0].actions_executed <= 20
