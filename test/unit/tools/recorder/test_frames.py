# SPDX-License-Identifier: Apache-2.0
"""Frames of cameras as JPEG: the same picture, header and times; what is none passes as it is."""

from __future__ import annotations

from contextlib import suppress
import struct
import threading

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import simplejpeg

from lerobot_serve.contract.cdr import CdrReader, CdrWriter
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.recording.write_queue import ReceivedMessage
from lerobot_serve.tools.recorder.frames import compressed, FrameCompressor

STAMP = struct.Struct('<iI')


def image(frame: np.ndarray, encoding: str, *, padding: int = 0, height: int | None = None):
    rows = frame.reshape(frame.shape[0], -1).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)))
    writer = CdrWriter()
    writer.pack(STAMP, 7, 8, align=4)
    writer.string('camera', 256)
    writer.pack(struct.Struct('<II'), height or frame.shape[0], frame.shape[1], align=4)
    writer.string(encoding, 256)
    writer.pack(struct.Struct('<B'), 0, align=1)
    writer.pack(struct.Struct('<I'), rows.shape[1], align=4)
    writer.block(rows.tobytes(), 1 << 28, 'data')
    return writer.finish()


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
    reader = CdrReader(compressed(image(frame, encoding, padding=padding)))
    assert reader.unpack(STAMP, align=4) == (7, 8)
    assert (reader.string(256, 'frame_id'), reader.string(256, 'format')) == ('camera', 'jpeg')
    colors = {'rgb8': 'RGB', 'bgr8': 'BGR', 'mono8': 'GRAY'}[encoding]
    found = simplejpeg.decode_jpeg(reader.block(1 << 28, 'data').tobytes(), colors)
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
    found: list[ReceivedMessage] = []
    compressor = FrameCompressor(found.append, waiting_frames=2)
    raw = image(picture(3), 'rgb8')
    for number in range(3):
        compressor.put(ReceivedMessage('/cam', raw, 10 + number, number))
    compressor.put(ReceivedMessage('/depth', raw, 1, 1))
    thread = threading.Thread(target=compressor.run)
    thread.start()
    compressor.close()
    thread.join(30)
    assert [(m.topic, m.received_ns, m.sent_ns) for m in found] == [
        ('/cam/compressed', 10, 0),
        ('/cam/compressed', 11, 1),
    ]
    assert dict(compressor.dropped) == {'/cam': 1, '/depth': 1}
