# SPDX-License-Identifier: Apache-2.0
"""A policy server in a process of its own, as robots meet it: good requests and bad ones."""

from __future__ import annotations

from dataclasses import replace
import queue

import numpy as np
import pytest
from support.nodes.small_client import SmallClient

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import encode as encode_image
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Codec, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ServerStatus
from lerobot_serve_interfaces.srv import ResetEpisode

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
