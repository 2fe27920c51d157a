# SPDX-License-Identifier: Apache-2.0
"""Typed messages and wire objects are two forms of one thing; camera images become RGB frames."""

from __future__ import annotations

import array

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image as RosImage
from support.contract.cdr_walk import Walk
from support.contract.wire_examples import (
    a_chunk,
    an_observation,
    chunks,
    content,
    frame,
    observations,
    patient,
)
from support.nodes.predict_chunk_rig import message_from_observation

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import ID_LIMIT
from lerobot_serve.ros.contract.predict_chunk_action import (
    message_from_chunk,
    observation_from_message,
)
from lerobot_serve.ros.image_messages import frame_from_image, image_from_frame
from lerobot_serve_interfaces.msg import Observation as ObservationMessage


@patient
@given(observations)
def test_an_observation_comes_back_from_its_message(plain):
    message = message_from_observation(plain)
    assert content(observation_from_message(message)) == content(plain)
    again = message_from_observation(observation_from_message(message))
    assert Walk(again).data == Walk(message).data


@patient
@given(chunks)
def test_a_chunk_comes_back_from_its_message(plain):
    message = message_from_chunk(plain)
    decoded = wire_chunk.decode(serialize_message(message))
    assert content(decoded) == content(plain)
    assert Walk(message_from_chunk(decoded)).data == Walk(message).data


def test_the_fields_of_the_message_are_those_of_the_object():
    message = message_from_observation(an_observation())
    assert message.episode_id == 'épisode'
    assert message.observation_steps == 2
    assert list(message.prefix_robot.data) == [2.0] * 6
    assert [image.name for image in message.images] == ['front', 'depth']
    assert message_from_chunk(a_chunk()).seed == 2**63


def test_a_message_that_breaks_a_bound_is_refused():
    message = message_from_observation(an_observation())
    message.client_id = 'x' * (ID_LIMIT + 1)
    with pytest.raises(Malformed, match='client_id') as caught:
        observation_from_message(message)
    assert caught.value.reason == 'oversized'


def test_an_object_that_breaks_a_bound_becomes_no_message():
    plain = Chunk(a_chunk().header, 'x' * (ID_LIMIT + 1), '')
    with pytest.raises(Unencodable):
        message_from_chunk(plain)


def test_a_message_without_a_header_is_refused():
    with pytest.raises(Malformed) as caught:
        observation_from_message(ObservationMessage())
    assert caught.value.reason == 'wrong_type'


# camera images


def ros_image(pixels: np.ndarray, encoding: str, *, gap: int = 0, big_endian: int = 0) -> RosImage:
    """Return an image whose rows are followed by `gap` bytes that are not pixels."""
    rows = np.ascontiguousarray(pixels).reshape(len(pixels), -1).view(np.uint8)
    padded = np.pad(rows, ((0, 0), (0, gap)), constant_values=0xEE)
    height, width = pixels.shape[:2]
    image = RosImage(height=height, width=width, encoding=encoding, is_bigendian=big_endian)
    image.step = padded.shape[1]
    image.data = array.array('B', padded.tobytes())
    return image


sizes = st.integers(1, 9)
gaps = st.integers(0, 5)


@given(sizes, sizes, gaps)
@settings(max_examples=50, deadline=None)
def test_rgb_pixels_stay_as_they_are(height, width, gap):
    pixels = frame(height, width, 3, np.uint8)
    assert np.array_equal(frame_from_image(ros_image(pixels, 'rgb8', gap=gap)), pixels)


@given(sizes, sizes, gaps)
@settings(max_examples=50, deadline=None)
def test_bgr_pixels_are_turned_around(height, width, gap):
    pixels = frame(height, width, 3, np.uint8)
    given_image = ros_image(pixels[:, :, ::-1], 'bgr8', gap=gap)
    assert np.array_equal(frame_from_image(given_image), pixels)


@given(sizes, sizes, gaps)
@settings(max_examples=50, deadline=None)
def test_grey_pixels_get_a_channel_axis(height, width, gap):
    pixels = frame(height, width, 1, np.uint8)
    assert np.array_equal(frame_from_image(ros_image(pixels, 'mono8', gap=gap)), pixels)


@given(sizes, sizes, gaps, st.booleans())
@settings(max_examples=50, deadline=None)
def test_depth_is_the_same_number_in_either_byte_order(height, width, gap, big_endian):
    pixels = frame(height, width, 1, np.uint16)
    ordered = pixels.astype('>u2' if big_endian else '<u2')
    image = ros_image(ordered, '16UC1', gap=gap, big_endian=int(big_endian))
    assert np.array_equal(frame_from_image(image), pixels)


def test_the_first_channel_is_red():
    red = np.zeros((2, 2, 3), np.uint8)
    red[:, :, 0] = 255
    assert frame_from_image(ros_image(red, 'rgb8'))[0, 0].tolist() == [255, 0, 0]
    assert frame_from_image(ros_image(red, 'bgr8'))[0, 0].tolist() == [0, 0, 255]


def test_a_frame_comes_back_from_its_image():
    pixels = frame(3, 5, 3, np.uint8)
    image = image_from_frame(pixels, 'camera')
    assert image.header.frame_id == 'camera'
    assert (image.encoding, image.step) == ('rgb8', 15)
    assert np.array_equal(frame_from_image(image), pixels)


@pytest.mark.parametrize(
    'change, reason',
    [
        ({'encoding': 'yuv422'}, 'unknown_encoding'),
        ({'encoding': ''}, 'unknown_encoding'),
        ({'width': 0}, 'wrong_shape'),
        ({'height': 0}, 'wrong_shape'),
        ({'step': 8}, 'wrong_shape'),
        ({'step': 0}, 'wrong_shape'),
        ({'height': 4}, 'wrong_shape'),
        ({'width': 2**32 - 1}, 'wrong_shape'),
        ({'height': 2**32 - 1, 'step': 2**32 - 1}, 'wrong_shape'),
        ({'data': array.array('B')}, 'wrong_shape'),
    ],
    ids=str,
)
def test_an_image_that_contradicts_itself_is_refused(change, reason):
    image = ros_image(frame(3, 3, 3, np.uint8), 'rgb8')
    for name, value in change.items():
        setattr(image, name, value)
    with pytest.raises(Malformed) as caught:
        frame_from_image(image)
    assert caught.value.reason == reason
