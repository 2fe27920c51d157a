# SPDX-License-Identifier: Apache-2.0
"""Frames cross as they are: the right colours, the announced size, or a refusal."""

from __future__ import annotations

import threading
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.contract.wire_examples import an_observation, frame, PICTURE, SMOOTH
from support.replacing import replace

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed, Unencodable
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


# a frame that is not what it claims to be is refused, and costs no memory to find out


REFUSED_MEMORY = 100_000
JPEG = image_codec.encode('front', PICTURE, Codec.JPEG)
GREY_JPEG = image_codec.encode('front', SMOOTH, Codec.JPEG)
RAW = image_codec.encode('front', PICTURE, Codec.RAW)


def reason(image: Image) -> str:
    """Return why an image is refused, having held that it costs no memory to find out."""
    tracemalloc.start()
    try:
        with pytest.raises(Malformed) as caught:
            image_codec.decode(image)
        # pytest keeps some memory of its own for the traceback
        assert tracemalloc.get_traced_memory()[1] < REFUSED_MEMORY
    finally:
        tracemalloc.stop()
    return caught.value.reason


def test_a_jpeg_cut_off_at_any_byte_is_refused():
    for size in range(len(JPEG.data)):
        with pytest.raises(Malformed) as caught:
            image_codec.decode(replace(JPEG, data=JPEG.data[:size]))
        assert caught.value.reason in ('bad_jpeg', 'wrong_shape')


@given(st.binary(max_size=64), st.booleans())
@settings(max_examples=80, deadline=None)
def test_noise_is_no_jpeg(noise, with_start):
    data = JPEG.data[:20] + noise if with_start else noise
    with pytest.raises(Malformed):
        image_codec.decode(replace(JPEG, data=data))


@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_a_damaged_jpeg_is_refused_or_has_the_announced_size(changes):
    data = bytearray(JPEG.data)
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        decoded = image_codec.decode(replace(JPEG, data=bytes(data)))
    except Malformed:
        return
    assert decoded.shape == PICTURE.shape


@pytest.mark.parametrize('height, width', [(17, 33), (32, 17), (33, 18), (1, 1), (4000, 4000)])
def test_a_jpeg_of_another_size_than_announced_is_refused(height, width):
    assert reason(replace(JPEG, height=height, width=width)) == 'wrong_shape'


def test_the_announced_channels_are_what_comes_out():
    coloured = image_codec.decode(replace(GREY_JPEG, channels=3))
    assert coloured.shape == (33, 17, 3)
    assert (coloured == coloured[:, :, :1]).all()
    assert image_codec.decode(replace(JPEG, channels=1)).shape == (33, 17, 1)


@pytest.mark.parametrize('codec', [0, 3, 255])
def test_an_unknown_codec_is_refused(codec):
    assert reason(replace(JPEG, codec=codec)) == 'unknown_codec'


@pytest.mark.parametrize('image', [JPEG, RAW], ids=['jpeg', 'raw'])
@pytest.mark.parametrize(
    'change',
    [
        {'height': 0},
        {'width': 0},
        {'height': 0, 'width': 0, 'data': b''},
        {'height': 65535, 'width': 65535},
        {'height': 2**32 - 1, 'width': 2**32 - 1},
        {'height': image_codec.PIXELS_LIMIT + 1, 'width': 1},
        {'channels': 0},
        {'channels': 2},
        {'channels': 4},
        {'channels': 255},
    ],
    ids=lambda change: str({name: value for name, value in change.items() if name != 'data'}),
)
def test_a_frame_that_cannot_be_is_refused_before_it_is_decoded(image, change):
    assert reason(replace(image, **change)) == 'wrong_shape'


def test_a_small_jpeg_cannot_ask_for_gigabytes():
    frame_header = JPEG.data.index(b'\xff\xc0')
    at = frame_header + 5
    giant = JPEG.data[:at] + b'\xff\xdc\xff\xdc' + JPEG.data[at + 4 :]
    assert reason(replace(JPEG, data=giant)) == 'bad_jpeg'
    assert reason(replace(JPEG, data=giant, height=0xFFDC, width=0xFFDC)) == 'wrong_shape'


@pytest.mark.parametrize(
    'change',
    [
        {'data': bytes(RAW.data)[:-1]},
        {'data': bytes(RAW.data) + b'\x00'},
        {'data': b''},
        {'height': 34},
        {'channels': 1},
        {'channel_bytes': 2},
        {'channel_bytes': 0},
        {'channel_bytes': 4},
        {'height': 8000, 'width': 8000},
    ],
    ids=lambda change: str({n: v if n != 'data' else len(v) for n, v in change.items()}),
)
def test_a_raw_frame_has_exactly_its_bytes(change):
    assert reason(replace(RAW, **change)) == 'wrong_shape'


# the cameras of one robot, side by side: the same results as one by one, and no thread stays


FRAMES = {f'camera {n}': np.roll(PICTURE, n, axis=0) for n in range(5)}


@pytest.fixture
def pool():
    pool = image_codec.ImageCodecPool(3)
    yield pool
    pool.close()


@pytest.mark.parametrize('codec', Codec)
def test_a_pool_gives_what_one_thread_gives_in_order(pool, codec):
    encoded = pool.encode_all(FRAMES, codec, 80)
    alone = [image_codec.encode(n, f, codec, quality=80) for n, f in FRAMES.items()]
    assert [image.name for image in encoded] == list(FRAMES)
    assert [bytes(image.data) for image in encoded] == [bytes(image.data) for image in alone]
    decoded = pool.decode_all(encoded)
    for given_frame, image in zip(decoded, alone, strict=True):
        assert np.array_equal(given_frame, image_codec.decode(image))


@pytest.mark.parametrize('threads', [0, 1])
def test_a_pool_of_one_thread_starts_none(threads):
    before = threading.active_count()
    pool = image_codec.ImageCodecPool(threads)
    assert len(pool.decode_all(pool.encode_all(FRAMES, Codec.JPEG, 80))) == len(FRAMES)
    assert threading.active_count() == before
    pool.close()


def test_a_pool_ends_its_threads():
    before = threading.active_count()
    pool = image_codec.ImageCodecPool(3)
    pool.encode_all(FRAMES, Codec.JPEG, 80)
    assert threading.active_count() > before
    pool.close()
    assert threading.active_count() == before


def test_a_pool_works_on_after_a_bad_frame(pool):
    broken_one = replace(image_codec.encode('broken', PICTURE, Codec.JPEG), data=b'')
    broken = (*pool.encode_all(FRAMES, Codec.JPEG, 80), broken_one)
    with pytest.raises(Malformed, match='broken'):
        pool.decode_all(broken)
    with pytest.raises(Unencodable, match='empty'):
        pool.encode_all({**FRAMES, 'empty': PICTURE[:0]}, Codec.JPEG, 80)
    assert len(pool.decode_all(broken[:-1])) == len(FRAMES)


def test_no_cameras_are_no_images(pool):
    assert pool.encode_all({}, Codec.JPEG, 80) == ()
    assert pool.decode_all(()) == ()
