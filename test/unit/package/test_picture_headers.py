# SPDX-License-Identifier: Apache-2.0
"""Headers of pictures: what takes a decoder longer than its pixels do never gets to one."""

from __future__ import annotations

import base64

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import simplejpeg
from support.contract.wire_examples import an_observation
from support.replacing import replace

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.schema import Codec
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.http.images import image_of, PixelBudget
from lerobot_serve.picture_headers import (
    check_picture,
    PictureSize,
    PNG,
    read_jpeg_header,
    SEGMENT_LIMIT,
    UnreadablePicture,
)
from lerobot_serve.tools.dashboard.robot_messages import jpeg_of
from lerobot_serve.tools.dataset import checking

HEIGHT, WIDTH = 24, 32
FRAME = np.arange(HEIGHT * WIDTH * 3, dtype=np.uint32).astype(np.uint8).reshape(HEIGHT, WIDTH, 3)
PLAIN = simplejpeg.encode_jpeg(FRAME, 90, 'RGB')
SCAN = PLAIN.index(b'\xff\xda')
FRAME_HEADER = PLAIN.index(b'\xff\xc0')


def refused(data: bytes, said: str) -> None:
    with pytest.raises(UnreadablePicture, match=said):
        read_jpeg_header(data)
    with pytest.raises(UnreadablePicture):
        check_picture(data)


@pytest.mark.parametrize('colours', ['RGB', 'GRAY'])
@pytest.mark.parametrize('kind', [bytes, memoryview])
def test_what_encoders_write_is_read(colours, kind):
    frame = FRAME if colours == 'RGB' else np.ascontiguousarray(FRAME[:, :, :1])
    for subsampling in ('444', '420') if colours == 'RGB' else ('Gray',):
        data = simplejpeg.encode_jpeg(frame, 100, colours, colorsubsampling=subsampling)
        assert read_jpeg_header(kind(data)) == PictureSize(HEIGHT, WIDTH, frame.shape[2])
    _, data = cv2.imencode('.jpg', frame, [cv2.IMWRITE_JPEG_RST_INTERVAL, 1])
    assert read_jpeg_header(data.tobytes()).channels == frame.shape[2]
    noise = np.random.default_rng(1).integers(0, 255, (480, 640, 3), np.uint8)
    check_picture(simplejpeg.encode_jpeg(noise, 100, 'RGB', colorsubsampling='444'))


def test_scans_without_number_are_refused():
    _, data = cv2.imencode('.jpg', FRAME, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    progressive = data.tobytes()
    scans = progressive[progressive.index(b'\xff\xda') : -2]
    refused(progressive[:-2] + scans * 1000 + b'\xff\xd9', 'is progressive')


def seen_on_page(data: bytes) -> object:
    image = Image('front', HEIGHT, WIDTH, data, Codec.JPEG)
    request = replace(an_observation(), images=(image,))
    return jpeg_of(wire_observation.encode(request), 'front')


READERS = {
    'http': lambda data: image_of('image', base64.b64encode(data).decode(), PixelBudget()),
    'page': seen_on_page,
    'dataset': lambda data: checking._picture_fault(data, [HEIGHT, WIDTH, 3], True),
}


@pytest.mark.parametrize('reader', READERS)
def test_each_reader_asks_the_header_first(reader, monkeypatch):
    """The edge and the server: test_camera_inputs.py, test_wire_images.py."""
    for module in (simplejpeg, cv2):
        for name in ('decode_jpeg', 'imdecode'):
            monkeypatch.setattr(module, name, None, raising=False)
    _, data = cv2.imencode('.jpg', FRAME, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    try:
        answer = str(READERS[reader](data.tobytes()))
    except (Malformed, PredictionError) as error:
        answer = str(error)
    assert 'progressive' in answer


def test_scans_of_single_channels_are_refused():
    # baseline: a decoder keeps all coefficients and reads each of the scans
    scan = b'\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00'
    refused(PLAIN[:SCAN] + scan * 1000 + b'\xff\xd9', 'has its channels in several scans')


def test_scans_behind_the_first_are_not_decoded():
    """The rule of one scan with all channels rests on this."""
    with pytest.raises(ValueError, match=r'EOI|[Ee]xpect'):
        simplejpeg.decode_jpeg(PLAIN[:-2] + PLAIN[SCAN:-2] * 3 + b'\xff\xd9', 'RGB', strict=True)


# libjpeg takes no length of these, and reads the frame that would be skipped with it
@pytest.mark.parametrize('marker', [0x01, 0xD0, 0xD7, 0xD8, 0x00, 0x02, 0xBF])
def test_markers_that_decoders_skip_in_their_own_ways_are_refused(marker):
    _, progressive = cv2.imencode('.jpg', FRAME, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    hidden = progressive.tobytes()[2:]
    skipped = bytes([0xFF, marker]) + (len(hidden) + 2).to_bytes(2, 'big') + hidden
    refused(PLAIN[:2] + skipped + PLAIN[2:], r'is not a baseline')


def edited(at: int, *values: int) -> bytes:
    return PLAIN[:at] + bytes(values) + PLAIN[at + len(values) :]


@pytest.mark.parametrize(
    ('data', 'said'),
    [
        (b'', 'does not begin as a JPEG does'),
        (PLAIN[:SCAN], 'has no complete header'),
        (PLAIN[:4], 'has no complete header'),
        (PLAIN[:2] + b'\xff\xfe\x00\x02' * SEGMENT_LIMIT + PLAIN[2:], 'has no complete header'),
        (PLAIN[:2] + b'\xff' * (1 << 20) + PLAIN[2:], 'has no complete header'),
        (PLAIN[:2] + b'\xff\xfe\x00\x00' + PLAIN[2:], 'has no complete header'),
        (edited(FRAME_HEADER + 1, 0xC3), 'is not a baseline'),
        (edited(FRAME_HEADER + 1, 0xC9), 'is not a baseline'),
        (edited(FRAME_HEADER + 4, 12), 'is not a baseline'),
        (edited(FRAME_HEADER + 5, 0, 0), 'is 0x32'),
        (edited(FRAME_HEADER + 5, 255, 255, 255, 255), 'is 65535x65535'),
        (edited(FRAME_HEADER + 9, 4), '32x4, not a frame'),
        (PLAIN[:FRAME_HEADER] + PLAIN[FRAME_HEADER:SCAN] * 2 + PLAIN[SCAN:], 'has two frames'),
        (PLAIN[:FRAME_HEADER] + PLAIN[SCAN:], 'has no frame'),
        (PLAIN + bytes(1 << 21), 'bytes for 768 pixels'),
    ],
)
def test_what_is_no_plain_picture_is_refused(data, said):
    refused(data, said)


@pytest.mark.parametrize('data', [b'BM', b'GIF89a', b'RIFF    WEBPVP8 ', b'II*\0', PNG])
def test_other_formats_are_refused(data):
    with pytest.raises(UnreadablePicture):
        check_picture(data + bytes(64))


@given(
    st.lists(
        st.tuples(st.integers(0, SCAN + 12), st.integers(0, 2), st.binary(max_size=4)),
        max_size=4,
    )
)
@settings(max_examples=1500, deadline=None)
def test_a_decoder_sees_the_size_that_was_checked(changes):
    data = bytearray(PLAIN)
    for start, removed, added in changes:
        data[start : start + removed] = added
    try:
        size = read_jpeg_header(bytes(data))
    except UnreadablePicture as error:
        assert '\n' not in str(error)
        return
    try:
        height, width, *_ = simplejpeg.decode_jpeg_header(bytes(data))
    except ValueError:
        return
    assert (height, width) == (size.height, size.width)
