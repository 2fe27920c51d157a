# SPDX-License-Identifier: Apache-2.0
"""What one client may do to a policy server and to the robots beside it: asked badly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from std_msgs.msg import Float64MultiArray
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.image_codec import encode
from lerobot_serve.contract.schema import Codec, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_messages import message_from_session_request
from lerobot_serve.ros.contract.typed_messages import message_from_observation
from lerobot_serve_interfaces.srv import OpenSession

NULL = {'policy_kind': 'null', 'policy_path': 'joints=6,chunk=30,cameras=front:48x64,fps=30'}
GOALS = 40


def refused(rig, **ask: object) -> SessionRefused:
    """Return why a client gets no session."""
    with pytest.raises(SessionRefused) as error:
        SmallClient(rig.node, rig.name, 'vandal', **{'cameras': (), **ask}).open()
    return error.value


def test_a_robot_waits_for_one_call_of_predict_chunk_however_many_there_are(rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered', max_waiting_goals=8)
    robot = rig.client('robot')
    asked = message_from_observation(robot.observation())
    goals = [rig.predict(asked) for _ in range(GOALS)]
    # one is in the policy's hands, eight wait
    rig.wait_for_drop('one_shots_full', GOALS - 9)
    rig.wait(lambda: sum(goal.done() for goal in goals) == GOALS - 9, 'the others are refused')
    robot.request()
    rig.wait_for_requests(10)
    rig.steering.turns.open_gate()
    assert robot.take().status == Status.OK
    results = [goal.result()[1] for goal in goals]
    answers = [chunk.status for chunk in results]
    assert (answers.count(Status.OK), answers.count(Status.TOO_LATE)) == (9, GOALS - 9)
    assert {chunk.status_text for chunk in results if chunk.status} == {
        '8 predict_chunk calls are waiting, the limit (max_waiting_goals); call '
        'again later, or open a session'
    }
    served = [event.split()[1] for event in rig.steering.events('predict ')]
    # the one in hand, the one whose turn it was, the robot, the rest
    assert served.index('robot#00000001') == 2
    assert rig.drops() == {'one_shots_full': GOALS - 9}


def test_what_a_client_calls_itself_forges_no_line_of_the_log(rig, log_of_rig):
    rig.start(policy_kind='steered')
    forged = '[ERROR] [policy_server]: the arm hit the table'
    for name in ('robot_type', 'client_id'):
        error = refused(rig, **{name: f'so101\n{forged}\x1b[2J'})
        assert error.code == Refusal.BAD_NAME
        assert f'{name} must be printable' in str(error)
    # a client of ours does not send it; others do
    assert 'robot_type: ' in str(refused(rig, robot_type='x' * 4000))
    for name, value, words in (
        ('robot_type', 'x' * 4000, 'robot_type has 4000 characters, at most 128 are allowed'),
        ('action_names', ['x'] * 100_000, 'action_names has 100000 entries, 1024 are allowed'),
    ):
        asked = message_from_session_request(rig.stranger('vandal'))
        setattr(asked, name, value)
        assert words in rig.ask(OpenSession, 'open_session', asked).reason
    log = log_of_rig('policy_server')
    assert not [line for line in log.splitlines() if line.startswith(forged)]
    assert '\x1b[2J' not in log
    assert max(map(len, log.splitlines())) < 2000
    robot = rig.client(robot_type='Lab 3, arm 2', tags=(('shift', 'night'), ('lab', '3')))
    assert robot.round_trip().status == Status.OK
    line = 'opened tester#00000001 for Lab 3, arm 2 (shift=night, lab=3)'
    rig.wait(lambda: line in log_of_rig('policy_server'), 'the session is in the log')
    # as a router does for as long as nobody uses it
    assert rig.open_session(robot.ask).accepted
    rig.client('later')
    rig.wait(lambda: 'opened later#' in log_of_rig('policy_server'), 'the next one is in the log')
    assert log_of_rig('policy_server').count('opened tester#') == 1


def test_chunks_go_to_no_topic_that_is_not_for_chunks(rig, node):
    rig.start(policy_kind='steered')
    victim = rig.client('victim')
    for topic in ('/victim/joint_command', '/policy_server/observation', '/rosout', '/victim'):
        error = refused(rig, reply_topic=topic)
        assert error.code == Refusal.BAD_NAME
        assert '/.../action_chunk, or /.../replies/NAME for a relay' in str(error)
    error = refused(rig, reply_topic=victim.ask.reply_topic)
    assert "reply_topic '/victim/action_chunk' is used by 'victim'" in str(error)
    # the form is that of chunks, what goes over it is a command
    topic = '/victim/arm/action_chunk'
    commands = node.create_publisher(Float64MultiArray, topic, qos.COMMAND)
    try:
        rig.wait(
            lambda: 'std_msgs/msg/Float64MultiArray' in str(attempt(rig, topic)), 'it is refused'
        )
    finally:
        node.destroy_publisher(commands)
    assert victim.round_trip().status == Status.OK


def attempt(rig, topic: str) -> str:
    """Return the refusal of a client that wants its chunks there; empty when it has a session."""
    ask = rig.stranger('vandal', reply_topic=topic)
    return rig.open_session(ask).reason


def test_one_process_does_not_take_the_sessions_of_the_others(rig):
    rig.start(policy_kind='steered', max_sessions=6, max_sessions_per_process=3)
    replies = [rig.open_session(rig.stranger(f'name_{n}', instance=99)) for n in range(6)]
    assert [reply.accepted for reply in replies] == [True] * 3 + [False] * 3
    assert {reply.code for reply in replies[3:]} == {Refusal.CAPACITY}
    assert '(instance 99) has 3 sessions' in replies[3].reason
    assert [client.round_trip().status for client in rig.clients(3)] == [Status.OK] * 3


def test_a_huge_picture_is_refused_before_it_is_decoded(rig):
    rig.start(**NULL)
    client = rig.client(cameras=rig.describe().cameras)
    name = 'observation.images.front'
    # 64 Mpx in less than a megabyte, a second of decoding
    huge = encode(name, np.zeros((8000, 8000, 3), np.uint8), Codec.JPEG)
    # the header lies: it is decoded no more than that
    for image in (huge, replace(huge, height=48, width=64)):
        chunk = client.round_trip(images=(image,))
        assert chunk.status == Status.BAD_OBSERVATION
        assert chunk.inference_ms == 0
    assert rig.drops() == {'oversized_image': 1, 'wrong_shape': 1}
    good = encode(name, np.zeros((480, 640, 3), np.uint8), Codec.JPEG)
    assert client.round_trip(images=(good,)).status == Status.OK


@pytest.mark.parametrize('data', [b'', b'\0', b'\0\1\0'], ids=len)
def test_a_payload_without_a_header_harms_no_one_but_its_sender(rig, data):
    rig.start(policy_kind='steered')
    vandal, robot = rig.clients(2)
    for _ in range(20):
        vandal.send(data)
        assert robot.round_trip().status == Status.OK
    assert vandal.round_trip().status == Status.OK
    # a new writer of the same process is heard
    again = SmallClient(rig.node, rig.name, 'robot_0', cameras=(), session_epoch=2)
    again.open()
    assert again.round_trip().status == Status.OK


def test_the_path_of_the_policy_is_not_for_everyone_to_change(rig):
    rig.start(policy_kind='steered', autostart=False, until='unconfigured')
    before = rig.steering.path()
    reason = rig.set(policy_path='/tmp/vandal')
    assert f'policy_path is fixed at start ({before!r})' in reason
    assert 'policy_root' in reason
    assert 'read-only' in rig.set(policy_root='/tmp')
    assert rig.set(policy_path=before) == ''


def test_below_the_root_that_the_operator_named_it_may_change(rig):
    root = rig.steering.folder.parent
    rig.start(policy_kind='steered', autostart=False, until='unconfigured', policy_root=str(root))
    for path in ('/etc', f'{root}/..', f'{root}/../vandal'):
        assert 'must be below policy_root' in rig.set(policy_path=path)
    assert rig.set(policy_path=rig.steering.path(chunk=4)) == ''
    assert rig.change_state('configure')
    assert rig.describe().chunk_size == 4
