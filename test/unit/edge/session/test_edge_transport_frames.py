# SPDX-License-Identifier: Apache-2.0
"""The way to the outside: observations as policies expect them, frames as the camera has them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.edge.edge_transport_rig import jpeg, pixels, ROBOT, seen, STATE, worlds

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import CameraSpec
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.session import SessionRequest


@pytest.fixture
def world():
    with worlds() as make:
        yield make


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


def asked(there) -> SessionRequest:
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
