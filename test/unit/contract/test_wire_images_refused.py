# SPDX-License-Identifier: Apache-2.0
"""A frame that is not what it claims to be is refused, and costs no memory to find out."""

from __future__ import annotations

from dataclasses import replace
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.contract.wire_examples import PICTURE, SMOOTH

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Codec

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
