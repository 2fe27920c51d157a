# SPDX-License-Identifier: Apache-2.0
"""A camera's messages become frames, or go on as they are; what is damaged is refused."""

from __future__ import annotations

import contextlib

import cv2
from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CompressedImage, Image
import simplejpeg
from support.contract.wire_examples import frame as picture

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import decode
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.robot.description import CameraInput
from lerobot_serve.edge.ros import sensor_messages
from lerobot_serve.ros.image_messages import image_from_frame

PLAIN = CameraInput('front', 'camera', 'sensor_msgs/Image', 1.0)
COMPRESSED = CameraInput('front', 'camera', 'sensor_msgs/CompressedImage', 1.0)
# neither neighbouring channels nor rows and columns can be taken for each other
SMOOTH = np.stack(np.meshgrid(np.arange(64), np.arange(48)), -1).astype(np.uint8) * 3
COLOURS = np.dstack([SMOOTH, np.full((48, 64), 200, np.uint8)])


def compressed(data: bytes) -> bytes:
    return serialize_message(CompressedImage(format='whatever', data=data))


def png(pixels: np.ndarray) -> bytes:
    return cv2.imencode('.png', pixels)[1].tobytes()


def jpeg(pixels: np.ndarray = COLOURS, *, progressive: bool = False) -> bytes:
    flags = [cv2.IMWRITE_JPEG_QUALITY, 95, cv2.IMWRITE_JPEG_PROGRESSIVE, int(progressive)]
    return cv2.imencode('.jpg', pixels[:, :, ::-1], flags)[1].tobytes()


def is_close(frame: np.ndarray, pixels: np.ndarray) -> bool:
    return frame.shape == pixels.shape and np.abs(frame.astype(int) - pixels).mean() < 4


def test_a_plain_image_is_opened():
    pixels = picture(3, 5, 3, np.uint8)
    raw = serialize_message(image_from_frame(pixels, 'camera'))
    assert np.array_equal(sensor_messages.rgb_frame(raw, PLAIN), pixels)
    assert sensor_messages.camera_jpeg(raw, PLAIN) is None


def test_a_jpeg_goes_on_as_it_is():
    data = jpeg()
    image = sensor_messages.camera_jpeg(compressed(data), COMPRESSED)
    assert bytes(image.data) == data
    assert (image.height, image.width, image.channels, image.codec) == (48, 64, 3, Codec.JPEG)
    assert is_close(decode(image), COLOURS)
    assert is_close(sensor_messages.rgb_frame(compressed(data), COMPRESSED), COLOURS)


def test_a_camera_may_fill_up_behind_a_jpeg():
    image = sensor_messages.camera_jpeg(compressed(jpeg() + bytes(7)), COMPRESSED)
    assert is_close(decode(image), COLOURS)


@pytest.mark.parametrize(
    ('data', 'pixels'),
    [
        (jpeg(SMOOTH[:, :, :1].repeat(1, 2)), SMOOTH[:, :, :1]),
        (png(COLOURS[:, :, ::-1]), COLOURS),
    ],
    ids=['grey', 'png'],
)
def test_whatever_else_is_decoded(data, pixels):
    assert sensor_messages.camera_jpeg(compressed(data), COMPRESSED) is None
    assert is_close(sensor_messages.rgb_frame(compressed(data), COMPRESSED), pixels)


@pytest.mark.parametrize(
    ('channels', 'kind'), [(1, np.uint8), (3, np.uint8), (1, np.uint16), (3, np.uint16)]
)
def test_a_png_keeps_every_pixel(channels, kind):
    pixels = picture(5, 7, channels, kind)
    found = sensor_messages.rgb_frame(compressed(png(pixels[:, :, ::-1])), COMPRESSED)
    assert np.array_equal(found, pixels)
    assert found.dtype == kind


def test_a_png_loses_its_transparency():
    pixels = picture(5, 7, 3, np.uint8)
    opaque = np.dstack([pixels[:, :, ::-1], np.full((5, 7), 99, np.uint8)])
    assert np.array_equal(sensor_messages.rgb_frame(compressed(png(opaque)), COMPRESSED), pixels)


def huge_png() -> bytes:
    data = bytearray(png(COLOURS))
    data[16:24] = (60_000).to_bytes(4, 'big') * 2
    return bytes(data)


def huge_jpeg() -> bytes:
    data = bytearray(jpeg())
    at = data.index(b'\xff\xc0')
    data[at + 5 : at + 9] = b'\xff\xff\xff\xff'
    return bytes(data)


@pytest.mark.parametrize(
    ('data', 'reason'),
    [
        (b'', 'unknown_encoding'),
        (b'GIF89a', 'unknown_encoding'),
        (b'\xff\xd8\xff', 'bad_jpeg'),
        (b'\xff\xd8\xff' + b'\xff' * 50, 'bad_jpeg'),
        (b'\xff\xd8\xff\xe0' + bytes(50), 'bad_jpeg'),
        (jpeg()[:-200], 'bad_jpeg'),
        (jpeg()[:60], 'bad_jpeg'),
        (jpeg(progressive=True), 'bad_jpeg'),
        (huge_jpeg(), 'bad_jpeg'),
        (png(COLOURS)[:30], 'bad_png'),
        (png(COLOURS)[:-200], 'bad_png'),
        (png(COLOURS)[:60] + png(COLOURS)[-12:], 'bad_png'),
        (huge_png(), 'wrong_shape'),
    ],
)
def test_what_is_no_whole_picture_is_refused(data, reason):
    assert sensor_messages.camera_jpeg(compressed(data), COMPRESSED) is None
    with pytest.raises(Malformed) as caught:
        sensor_messages.rgb_frame(compressed(data), COMPRESSED)
    assert caught.value.reason == reason
    assert str(caught.value).startswith('camera: ')


def test_a_camera_that_sends_something_else_is_named():
    raw = serialize_message(Image(encoding='yuv422', height=1, width=1, step=2, data=bytes(2)))
    with pytest.raises(Malformed, match=r"^camera: image encoding 'yuv422' is not one of"):
        sensor_messages.rgb_frame(raw, PLAIN)


@given(st.integers(0, 10_000), st.binary(max_size=4), st.sampled_from([jpeg(), png(COLOURS)]))
@settings(max_examples=200, deadline=None)
def test_a_damaged_picture_is_a_frame_or_malformed(at, noise, data):
    at %= len(data)
    raw = compressed(data[:at] + noise + data[at + len(noise) :])
    image = sensor_messages.camera_jpeg(raw, COMPRESSED)
    if image is not None:
        # the decoder of the server may refuse more
        with contextlib.suppress(ValueError):
            assert simplejpeg.decode_jpeg_header(image.data)[:2] == (image.height, image.width)
    try:
        found = sensor_messages.rgb_frame(raw, COMPRESSED)
    except Malformed:
        return
    assert found.ndim == 3
    assert found.shape[2] in (1, 3)
