# SPDX-License-Identifier: Apache-2.0
"""Frames of cameras as JPEG: the same picture, header and times; what is none passes as it is."""

from __future__ import annotations

from contextlib import suppress
import threading

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import simplejpeg

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.types import Time
from lerobot_serve.tools.bags.images import CompressedImage, RAW_TYPE, RawImage
from lerobot_serve.tools.bags.message import BagMessage
from lerobot_serve.tools.recorder.frames import compressed, FrameCompressor


def image(frame: np.ndarray, encoding: str, *, padding: int = 0, height: int | None = None):
    rows = frame.reshape(frame.shape[0], -1).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    size = height or frame.shape[0], frame.shape[1]
    data = rows.tobytes()
    return encode(RawImage(Time(7, 8), 'camera', *size, encoding, 0, rows.shape[1], data))


def picture(channels: int) -> np.ndarray:
    """Return a smooth picture with a colour that shows a swap of channels."""
    frame = np.zeros((48, 64, channels), np.uint8)
    frame[..., 0] = 200
    frame[..., -1] = np.linspace(0, 60, 64)
    return frame


@pytest.mark.parametrize(('encoding', 'channels'), [('rgb8', 3), ('bgr8', 3), ('mono8', 1)])
@pytest.mark.parametrize('padding', [0, 5])
def test_the_picture_is_the_same(encoding, channels, padding):
    frame = picture(channels)
    made = decode(CompressedImage, compressed(image(frame, encoding, padding=padding)))
    assert (made.stamp, made.frame_id, made.format) == (Time(7, 8), 'camera', 'jpeg')
    colors = {'rgb8': 'RGB', 'bgr8': 'BGR', 'mono8': 'GRAY'}[encoding]
    found = simplejpeg.decode_jpeg(bytes(made.data), colors)
    assert np.abs(found.astype(int) - frame).max() <= 6


def test_depth_passes_as_it_is_and_a_lie_is_refused():
    assert compressed(image(np.zeros((4, 4, 1), np.uint16), '16UC1')) is None
    with pytest.raises(Malformed):
        compressed(image(picture(3), 'rgb8', height=1000))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_pass(raw):
    with suppress(Malformed):
        compressed(b'\x00\x01\x00\x00' + raw)


def test_the_compressor_keeps_both_times_and_drops_the_newest_when_full():
    found: list[BagMessage] = []
    compressor = FrameCompressor(found.append, waiting_frames=2)
    raw = image(picture(3), 'rgb8')
    for number in range(3):
        compressor.put(BagMessage('/cam', RAW_TYPE, 10 + number, raw, number))
    compressor.put(BagMessage('/depth', RAW_TYPE, 1, raw, 1))
    thread = threading.Thread(target=compressor.run)
    thread.start()
    compressor.close()
    thread.join(30)
    assert [(m.topic, m.stamp_ns, m.sent_ns) for m in found] == [
        ('/cam/compressed', 10, 0),
        ('/cam/compressed', 11, 1),
    ]
    assert dict(compressor.dropped) == {'/cam': 1, '/depth': 1}
