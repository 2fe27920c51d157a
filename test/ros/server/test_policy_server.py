# SPDX-License-Identifier: Apache-2.0
"""A policy server in a process of its own, as robots meet it: good requests and bad ones."""

from __future__ import annotations

from dataclasses import replace
import queue

import numpy as np
import pytest
from std_msgs.msg import Float64MultiArray
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import encode
from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Codec, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.session_messages import message_from_session_request
from lerobot_serve.ros.contract.typed_messages import message_from_observation
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import OpenSession, ResetEpisode

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


BAD = {
    'nan_state': ({'state': np.full((1, 6), np.nan, np.float32)}, 'not_finite', 'joint_0.pos'),
    'short_state': ({'state': np.zeros((1, 5), np.float32)}, 'wrong_shape', '6 values'),
    'history': ({'state': np.zeros((2, 6), np.float32)}, 'wrong_shape', '1 observations'),
    'no_camera': ({'images': ()}, 'missing_camera', CAMERA),
    'codec': ({'images': (replace(images()[0], codec=9),)}, 'unknown_codec', 'got 9'),
    'jpeg_cut': (
        {'images': (replace(images(Codec.JPEG)[0], data=images(Codec.JPEG)[0].data[:200]),)},
        'bad_jpeg',
        'no complete header',
    ),
    'raw_short': ({'images': (replace(images()[0], data=b'123'),)}, 'wrong_shape', '3 bytes'),
    'zero_size': ({'images': (replace(images()[0], height=0),)}, 'wrong_shape', '0x64'),
}


@pytest.mark.parametrize('case', BAD)
def test_a_bad_observation_is_answered_with_the_reason(client, drops, case):
    changes, reason, words = BAD[case]
    chunk = client.round_trip(**{'images': images(), **changes})
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text
    assert not chunk.robot.size
    drops(reason)
    assert client.round_trip(images=images()).status == Status.OK


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
    status = drops('encapsulation', 2)
    drops('truncated', 1)
    assert status.state == ServerStatus.ACTIVE


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


REFUSALS = {
    Refusal.SCHEMA_TOO_NEW: {'schema_version': SCHEMA_VERSION + 1},
    Refusal.SCHEMA_TOO_OLD: {'schema_version': 0},
    Refusal.ACTION_NAMES: {'action_names': ('a',) * 6},
    Refusal.STATE_NAMES: {'state_names': ()},
    Refusal.CAMERAS: {'cameras': ()},
    Refusal.WRONG_POLICY: {'policy': 'other'},
    Refusal.CODEC: {'codec': 9},
    Refusal.FPS: {'fps': float('nan')},
    Refusal.BAD_NAME: {'reply_topic': '/a b/../c'},
}


@pytest.mark.parametrize('code', REFUSALS, ids=lambda code: code.name)
def test_what_does_not_match_is_refused_with_its_code(server, node, code):
    with pytest.raises(SessionRefused) as refused:
        SmallClient(node, SERVER, **REFUSALS[code]).open()
    assert refused.value.code == code
    assert len(str(refused.value)) > 20


def test_a_reply_topic_that_carries_something_else_is_refused(server, node):
    with pytest.raises(SessionRefused, match='must be the full name of a ROS topic') as refused:
        SmallClient(node, SERVER, reply_topic='/policy_server/observation').open()
    assert refused.value.code == Refusal.BAD_NAME
    assert SmallClient(node, SERVER).open().accepted


def test_a_second_robot_of_the_same_name_is_refused(client, node):
    with pytest.raises(SessionRefused, match='in use by another robot') as refused:
        SmallClient(node, SERVER, instance=2, session_epoch=99).open()
    assert refused.value.code == Refusal.NAME_IN_USE
    assert client.round_trip(images=images()).status == Status.OK


def test_old_chunks_cannot_reach_a_reopened_session(client, drops):
    client.ask = replace(client.ask, session_epoch=2)
    client.open()
    old = client.observation(images=images())
    client.send(wire_observation.encode(replace(old, header=replace(old.header, session_epoch=1))))
    drops('no_session')
    chunk = client.round_trip(images=images())
    assert chunk.header.session_epoch == 2


def test_a_closed_session_answers_no_more(client, drops):
    assert client.close().closed
    assert not client.close().closed
    client.send(wire_observation.encode(client.observation(images=images())))
    drops('no_session')


def test_reset_is_acknowledged_for_the_open_session_only(client):
    request = ResetEpisode.Request(client_id='tester', session_epoch=1, episode=1)
    assert client.reset(request).acknowledged
    request.session_epoch = 5
    reply = client.reset(request)
    assert not reply.acknowledged
    assert 'epoch 5' in reply.text


# what one client may do to a policy server and to the robots beside it: asked badly


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
