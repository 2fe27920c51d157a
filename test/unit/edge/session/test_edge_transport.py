# SPDX-License-Identifier: Apache-2.0
"""The way to the outside: sessions as servers see them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.edge_transport_rig import jpeg, pixels, ROBOT, seen, STATE, worlds
from support.replacing import replace

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Codec, Refusal
from lerobot_serve.contract.services import action_range
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.robot.units import convert_between

GONE = ServerUnreachable('no answer')


@pytest.fixture
def world():
    with worlds() as make:
        yield make


def test_a_session_is_what_the_server_agreed_to(world):
    there = world()
    there.a.warnings = ('fps is 30, the policy learned 50',)
    agreement = there.open_session('/a', 9)
    ((name, ask),) = there.a.calls
    assert (name, ask.session_epoch, ask.action_names) == ('open', 9, ('pan.pos',))
    assert ask.reply_topic == '/robot/action_chunk'
    assert (agreement.schema_version, agreement.chunk_size) == (1, 50)
    assert (agreement.observation_steps, agreement.observation_stride_steps) == (2, 3)
    assert agreement.supports_rtc
    assert there.told == [
        'fps is 30, the policy learned 50',
        'session s-1 opened with /a, policy act@0',
    ]
    assert there.b.calls == []


def test_a_chunk_that_is_shorter_than_the_buffer_is_told(world):
    there = world(request_threshold_s=5.0, max_action_age_s=9.0)
    there.open_session('/a', 9)
    assert 'without a pause' in there.told[0]


def test_topics_that_are_not_found_are_told_and_no_reason_to_give_up(world):
    there = world()
    there.a.wired = False
    there.open_session('/a', 9)
    assert 'first requests may be lost' in there.told[0]
    there.transport.send(b'request')
    assert there.a.calls[-1] == ('send', b'request')


@pytest.mark.parametrize('error', [GONE, SessionRefused(Refusal.CAPACITY, 'full')])
def test_who_does_not_open_a_session_has_the_requester_know(world, error):
    there = world()
    there.a.error = error
    with pytest.raises(type(error)):
        there.open_session('/a', 9)
    assert there.told == []
    # there is none to leave
    there.transport.close_session()
    assert [call[0] for call in there.a.calls] == ['open']


def test_requests_go_to_the_server_whose_session_is_open(world):
    there = world()
    there.open_session('/a', 9)
    there.open_session('/b', 10)
    there.transport.send(b'request')
    assert there.b.calls[-1] == ('send', b'request')
    assert [call[0] for call in there.a.calls] == ['open']


def test_to_leave_says_which_session_and_only_once(world):
    there = world()
    there.open_session('/a', 9)
    there.transport.close_session()
    there.transport.close_session()
    assert [call[0] for call in there.a.calls] == ['open', 'close']
    assert there.a.calls[1][1].session_epoch == 9


def test_to_leave_a_server_that_is_gone_is_nothing_to_speak_of(world):
    there = world()
    there.open_session('/a', 9)
    told = list(there.told)
    there.a.error = GONE
    there.transport.close_session()
    assert there.told == told


def test_an_episode_is_told_with_its_number_and_name(world):
    there = world()
    there.open_session('/a', 9)
    there.transport.reset_episode(9, 4, 'fold-4')
    _, request = there.a.calls[-1]
    assert (request.client_id, request.session_epoch) == ('robot_1', 9)
    assert (request.episode, request.episode_id) == (4, 'fold-4')


def test_an_episode_that_a_server_does_not_begin_is_told_to_operators(world):
    there = world()
    there.open_session('/a', 9)
    there.a.refusal = 'no session of epoch 9'
    there.transport.reset_episode(9, 4, 'fold-4')
    assert (
        there.told[-1] == "server rejected the reset for episode 'fold-4': no session of epoch 9"
    )


def test_who_is_there_is_asked_of_its_own_client(world):
    there = world()
    there.b.there = False
    assert there.transport.is_available('/a')
    assert not there.transport.is_available('/b')


def told_range(most: float) -> tuple[SimpleNamespace, ...]:
    """Return what a server says of a policy whose one action was within so much in training."""
    value = action_range.encode(ActionRange((-most,), (most,)))
    return (SimpleNamespace(key=action_range.KEY, value=value),)


def test_a_policy_in_another_unit_is_refused_and_its_session_closed(world):
    there = world()
    there.a.extensions = told_range(90.0)
    with pytest.raises(
        SessionRefused, match='act@0: the range of the policy is far beyond'
    ) as refused:
        there.open_session('/a', 9)
    assert refused.value.code is Refusal.WRONG_POLICY
    assert [call[0] for call in there.a.calls] == ['open', 'close']


def test_a_policy_that_goes_a_little_beyond_is_a_warning(world):
    there = world()
    there.a.extensions = told_range(2.0)
    there.open_session('/a', 9)
    assert len(there.warned) == 1
    assert 'beyond the limits' in there.warned[0]


@pytest.mark.parametrize('value', [b'', b'{"low": [3], "high": [1]}'])
def test_a_range_that_cannot_be_read_is_told_and_no_reason_to_give_up(world, value):
    there = world()
    there.a.extensions = (SimpleNamespace(key=action_range.KEY, value=value),)
    there.open_session('/a', 9)
    assert 'units not compared' in there.told[0]


def test_a_state_leaves_in_the_unit_of_the_policy(world):
    units = {'p': convert_between('rad', 'deg'), 't': convert_between('rad', 'rad')}
    there = world(replace(ROBOT, units=units))
    states, _ = there.observe(seen(pan=math.pi / 2))
    assert states.tolist() == [[90.0, 0.25]]
    assert states.dtype == np.float32


# the way to the outside: observations as policies expect them, frames as the camera has them


def test_states_are_rows_of_single_precision_in_the_order_of_the_robot(world):
    states, _ = world().observe(seen(pan=0.5), seen(pan=0.75))
    assert states.dtype == np.float32
    assert states.tolist() == [[0.5, 0.25], [0.75, 0.25]]


def test_each_camera_has_the_name_that_the_policy_knows(world):
    bright = jpeg(pixels(value=200))
    _, frames = world().observe(seen(data=bright))
    assert list(frames) == ['cam_high', 'cam_low']
    brightness = {name: round(image_codec.decode(one).mean(), -1) for name, one in frames.items()}
    assert brightness == {'cam_high': 100, 'cam_low': 200}


def test_a_jpeg_of_the_camera_is_sent_as_it_is(world):
    data = jpeg()
    _, frames = world().observe(seen(data=data))
    assert bytes(frames['cam_low'].data) == data
    assert (frames['cam_low'].height, frames['cam_low'].width) == (16, 24)
    assert frames['cam_high'].codec == Codec.JPEG


def test_a_jpeg_is_opened_where_raw_is_wanted(world):
    _, frames = world(codec='raw').observe(seen())
    assert {frame.codec for frame in frames.values()} == {Codec.RAW}
    assert frames['cam_low'].data.nbytes == 16 * 24 * 3


@pytest.mark.parametrize('downscale', [True, False])
def test_frames_have_the_size_of_the_policy_where_that_is_wanted(world, downscale):
    there = world(downscale=downscale)
    there.a.cameras = (CameraSpec('cam_high', 8, 12), CameraSpec('cam_low', 4, 6))
    there.open_session('/a', 9)
    data = jpeg()
    _, frames = there.observe(seen(data=data))
    sizes = {name: (frame.height, frame.width) for name, frame in frames.items()}
    small, large = {'cam_high': (8, 12), 'cam_low': (4, 6)}, (16, 24)
    assert sizes == (small if downscale else dict.fromkeys(small, large))
    assert (bytes(frames['cam_low'].data) == data) != downscale


def test_a_policy_that_takes_any_size_gets_the_camera_as_it_is(world):
    there = world(downscale=True)
    there.a.cameras = (CameraSpec('cam_high'), CameraSpec('cam_low'))
    there.open_session('/a', 9)
    data = jpeg()
    _, frames = there.observe(seen(data=data))
    assert bytes(frames['cam_low'].data) == data


def test_the_sizes_are_those_of_the_present_server(world):
    there = world(downscale=True, codec='raw')
    there.a.cameras = (CameraSpec('cam_high', 8, 12),)
    there.open_session('/a', 9)
    there.open_session('/b', 10)
    _, frames = there.observe(seen())
    assert frames['cam_high'].height == 16


def test_what_cannot_be_used_is_malformed(world):
    with pytest.raises(Malformed, match='no tilt'):
        world().observe(seen() | {STATE: np.zeros(1)})


def test_a_robot_without_cameras_sends_its_state(world):
    there = world(replace(ROBOT, cameras=()))
    states, frames = there.observe(seen())
    assert (states.shape, frames) == ((1, 2), {})


def asked(there) -> OpenSessionRequest:
    """Return what the last session was asked for with."""
    return [ask for kind, *(ask, *_) in there.a.calls if kind == 'open'][-1]


STRETCHED = (
    'camera cam_low: 16x24 on the robot, 8x8 in training; the aspect ratio differs, so the image '
    'is stretched'
)


@pytest.mark.parametrize('changes', [{}, {'downscale': True}, {'codec': 'raw'}])
def test_a_camera_of_another_shape_is_told_with_the_first_image_and_announced_after(
    world, changes
):
    there = world(**changes)
    there.a.cameras = (CameraSpec('cam_high', 8, 12), CameraSpec('cam_low', 8, 8))
    there.open_session('/a', 9)
    # nothing has come by then
    assert [camera.height for camera in asked(there).cameras] == [0, 0]
    for _ in range(2):
        there.observe(seen())
    assert [text for text in there.told if 'stretched' in text] == [STRETCHED]
    # from now on the server sees it, and says it
    there.open_session('/a', 10)
    sizes = (CameraSpec('cam_high', 16, 24), CameraSpec('cam_low', 16, 24))
    assert asked(there).cameras == sizes
    there.observe(seen())
    assert [text for text in there.told if 'stretched' in text] == [STRETCHED]


def test_a_grey_camera_is_announced_as_one(world):
    there = world(codec='raw')
    there.observe(seen() | {'front': pixels()[:, :, :1]})
    there.open_session('/a', 9)
    assert [camera.channels for camera in asked(there).cameras] == [1, 3]
