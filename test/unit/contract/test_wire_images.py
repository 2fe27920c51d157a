# SPDX-License-Identifier: Apache-2.0
"""Frames cross as they are: the right colours, the announced size, or a refusal."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.contract.wire_examples import an_observation, frame, PICTURE, SMOOTH

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Codec

COLOURS = {'red': (255, 0, 0), 'green': (0, 255, 0), 'blue': (0, 0, 255), 'grey': (90, 90, 90)}
# of 255; JPEG keeps a plain colour but for the rounding of its colour space
JPEG_TOLERANCE = 3


def plain(colour: tuple[int, int, int]) -> np.ndarray:
    return np.full((31, 17, 3), colour, np.uint8)


def through_the_wire(image: Image) -> Image:
    observation = replace(an_observation(), images=(image,))
    return wire_observation.decode(wire_observation.encode(observation)).images[0]


@pytest.mark.parametrize('colour', COLOURS.values(), ids=COLOURS)
@pytest.mark.parametrize('quality', [50, 90, 100])
def test_a_colour_keeps_its_channel_in_jpeg(colour, quality):
    image = image_codec.encode('front', plain(colour), Codec.JPEG, quality=quality)
    decoded = image_codec.decode(through_the_wire(image))
    assert decoded.shape == (31, 17, 3)
    difference = decoded.astype(int) - plain(colour)
    assert np.abs(difference).max() <= JPEG_TOLERANCE


@pytest.mark.parametrize('colour', COLOURS.values(), ids=COLOURS)
def test_a_colour_stays_exactly_the_same_in_raw(colour):
    image = image_codec.encode('front', plain(colour), Codec.RAW)
    assert np.array_equal(image_codec.decode(through_the_wire(image)), plain(colour))


def test_a_picture_survives_jpeg():
    image = image_codec.encode('front', PICTURE, Codec.JPEG)
    decoded = image_codec.decode(through_the_wire(image)).astype(int)
    assert np.abs(decoded - PICTURE).mean() < JPEG_TOLERANCE


def test_a_grey_picture_survives_jpeg_with_one_channel():
    for given_frame in (SMOOTH, SMOOTH[:, :, None]):
        image = through_the_wire(image_codec.encode('front', given_frame, Codec.JPEG))
        assert image.channels == 1
        decoded = image_codec.decode(image)
        assert decoded.shape == (33, 17, 1)
        assert np.abs(decoded[:, :, 0].astype(int) - SMOOTH).max() <= 2 * JPEG_TOLERANCE


sizes = st.integers(1, 40)


@given(sizes, sizes, st.sampled_from([1, 3]), st.sampled_from([np.uint8, np.uint16, '>u2']))
@settings(max_examples=80, deadline=None)
def test_raw_frames_of_any_size_are_exact(height, width, channels, kind):
    pixels = frame(height, width, channels, np.uint16).astype(kind)
    decoded = image_codec.decode(through_the_wire(image_codec.encode('front', pixels, Codec.RAW)))
    assert np.array_equal(decoded, pixels)
    assert decoded.dtype == np.dtype(kind).newbyteorder('<')


@given(sizes, sizes, st.sampled_from([1, 3]), st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_jpeg_frames_of_any_size_keep_it(height, width, channels, quality):
    pixels = frame(height, width, channels, np.uint8)
    image = image_codec.encode('front', pixels, Codec.JPEG, quality=quality)
    assert image_codec.decode(image).shape == pixels.shape


def test_a_raw_frame_is_not_copied_before_it_is_sent():
    for kind in (np.uint8, np.uint16):
        pixels = frame(5, 7, 3, kind)
        assert np.shares_memory(image_codec.encode('front', pixels, Codec.RAW).data, pixels)


def test_a_raw_frame_is_not_copied_after_it_arrived():
    image = through_the_wire(image_codec.encode('front', PICTURE, Codec.RAW))
    decoded = image_codec.decode(image)
    assert np.shares_memory(decoded, image.data)
    assert not decoded.flags.writeable


@pytest.mark.parametrize('codec', Codec)
def test_a_frame_with_gaps_in_memory_arrives_whole(codec):
    wide = np.repeat(PICTURE, 2, axis=1)
    decoded = image_codec.decode(image_codec.encode('front', wide[:, ::2], codec))
    same = image_codec.decode(image_codec.encode('front', PICTURE, codec))
    assert np.array_equal(decoded, same)


def test_what_is_known_of_a_frame_is_announced():
    image = image_codec.encode('depth', frame(3, 5, 1, np.uint16), Codec.RAW, steps_back=2)
    announced = (image.name, image.height, image.width, image.channels, image.channel_bytes)
    assert announced == ('depth', 3, 5, 1, 2)
    assert (image.codec, image.steps_back) == (Codec.RAW, 2)


@pytest.mark.parametrize(
    'frame_given',
    [
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 0), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((4, 0, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
        np.zeros((4, 4, 3), np.int8),
        np.zeros((4, 4, 3), np.bool_),
        np.zeros((4, 4, 3), np.int16),
        np.zeros((4, 4, 3), np.float16),
        np.zeros((4, 4, 3), np.float32),
        np.broadcast_to(np.uint8(0), (65535, 65535, 3)),
    ],
    ids=lambda f: f'{f.shape} {f.dtype}',
)
@pytest.mark.parametrize('codec', Codec)
def test_what_is_no_frame_is_not_sent(frame_given, codec):
    with pytest.raises(Unencodable, match='front'):
        image_codec.encode('front', frame_given, codec)


@pytest.mark.parametrize(
    'frame_given, codec, quality',
    [
        (frame(4, 4, 1, np.uint16), Codec.JPEG, 90),
        (np.zeros((1, 65501, 3), np.uint8), Codec.JPEG, 90),
        (PICTURE, Codec.JPEG, -1),
        (PICTURE, Codec.JPEG, 101),
        (PICTURE, 0, 90),
        (PICTURE, 3, 90),
    ],
    ids=['16 bits', 'too wide', 'quality -1', 'quality 101', 'codec 0', 'codec 3'],
)
def test_what_cannot_be_encoded_says_so(frame_given, codec, quality):
    with pytest.raises(Unencodable, match='front'):
        image_codec.encode('front', frame_given, codec, quality=quality)
