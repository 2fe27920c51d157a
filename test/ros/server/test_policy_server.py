# SPDX-License-Identifier: Apache-2.0
"""A policy server in a process of its own, as robots meet it: good requests and bad ones."""

from __future__ import annotations

import queue

import numpy as np
import pytest
from std_msgs.msg import Float64MultiArray
from support.nodes.predict_chunk_rig import message_from_observation
from support.nodes.small_client import SmallClient
from support.replacing import replace

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.records import ResetEpisodeRequest
from lerobot_serve.contract.schema import Codec, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.contract.types import KeyValue
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_messages import message_of
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import OpenSession

SERVER = '/policy_server'
CAMERA = 'observation.images.front'
SHAPE = 'joints=6,chunk=30,cameras=front:48x64,fps=30'


@pytest.fixture
def server(processes):
    return processes.start(
        'policy_server',
        'policy_server',
        policy_kind='null',
        policy_path=SHAPE,
        status_period_s=0.1,
        session_grace_s=30.0,
    )


@pytest.fixture
def client(server, node) -> SmallClient:
    robot = SmallClient(node, SERVER)
    robot.open()
    return robot


@pytest.fixture
def drops(node, wait_until):
    """Returns a function that waits until a reason was counted so often."""
    latest: list[ServerStatus] = []
    node.create_subscription(ServerStatus, f'{SERVER}/status', latest.append, qos.STATE)

    def counted(reason: str, count: int = 1) -> ServerStatus:
        def reached():
            found = {drop.reason: drop.count for drop in latest[-1].dropped} if latest else {}
            return found.get(reason, 0) >= count and latest[-1]

        return wait_until(reached, f'{count} drops of {reason}')

    return counted


def frame() -> np.ndarray:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[:, :] = (255, 0, 0)
    return pixels


def images(codec: Codec = Codec.RAW) -> tuple[Image, ...]:
    return (encode_image(CAMERA, frame(), codec),)


@pytest.mark.parametrize('codec', tuple(Codec), ids=lambda codec: codec.name)
def test_an_observation_is_answered_with_a_chunk(client, codec):
    chunk = client.round_trip(images=images(codec))
    assert (chunk.status, chunk.status_text) == (Status.OK, '')
    assert chunk.robot.shape == (30, 6)
    assert np.array_equal(chunk.robot[0], np.linspace(-1, 1, 6, dtype=np.float32))
    assert chunk.policy.startswith('null@')
    assert chunk.slot == 'prod'
    assert chunk.client_id == 'tester'
    assert chunk.episode_id == 'episode-1'


def test_bytes_that_are_no_message_are_counted_and_survived(client, drops):
    good = wire_observation.encode(client.observation(images=images()))
    for raw in (
        b'',
        b'\x00',
        b'\x00\x01\x00\x00',
        b'\xff' * 100,
        good[:40],
        b'\x00\x00' + good[2:],
    ):
        client.send(raw)
        # one at a time: a keep-last(1) writer may replace what was not yet delivered
        assert client.round_trip(images=images()).status == Status.OK
    drops('encapsulation', 2)
    assert drops('truncated', 1).state == ServerStatus.ACTIVE


def test_an_observation_cut_behind_its_header_is_answered(client):
    raw = wire_observation.encode(client.observation(images=images()))
    client.send(raw[:-1000])
    chunk = client.take()
    assert chunk.status == Status.BAD_OBSERVATION
    assert 'ends at byte' in chunk.status_text


def test_a_request_of_another_epoch_or_robot_is_counted(client, drops):
    good = client.observation(images=images())
    client.send(
        wire_observation.encode(replace(good, header=replace(good.header, session_epoch=7)))
    )
    drops('no_session', 1)
    client.send(wire_observation.encode(replace(good, client_id='stranger')))
    drops('no_session', 2)
    with pytest.raises(queue.Empty):
        client.take(0.2)


def test_a_reply_topic_that_carries_something_else_is_refused(server, node):
    with pytest.raises(SessionRefused, match='must be the full name of a ROS topic') as refused:
        SmallClient(node, SERVER, reply_topic='/policy_server/observation').open()
    assert refused.value.code == Refusal.BAD_NAME
    assert SmallClient(node, SERVER).open().accepted


def test_a_closed_session_answers_no_more(client, drops):
    assert client.close().closed
    assert not client.close().closed
    client.send(wire_observation.encode(client.observation(images=images())))
    drops('no_session')


def test_reset_is_acknowledged_for_the_open_session_only(client):
    assert client.reset(ResetEpisodeRequest('tester', 1, 1)).acknowledged
    reply = client.reset(ResetEpisodeRequest('tester', 5, 1))
    assert not reply.acknowledged
    assert 'epoch 5' in reply.text


# what one client may do to a policy server and to the robots beside it: asked badly


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
        asked = message_of(rig.stranger('vandal'), OpenSession.Request)
        setattr(asked, name, value)
        assert words in rig.ask(OpenSession, 'open_session', asked).reason
    log = log_of_rig('policy_server')
    assert not [line for line in log.splitlines() if line.startswith(forged)]
    assert '\x1b[2J' not in log
    assert max(map(len, log.splitlines())) < 2000
    robot = rig.client(
        robot_type='Lab 3, arm 2', tags=(KeyValue('shift', 'night'), KeyValue('lab', '3'))
    )
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
