# SPDX-License-Identifier: Apache-2.0
"""
Compresses camera frames for the memory of the strategy highlight: sensor_msgs/Image becomes
sensor_msgs/CompressedImage on TOPIC/compressed, with the same header and the same times.

Pure but for FrameCompressor, whose thread is its own. Frames that JPEG cannot carry, such as
depth, pass as they are.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
import struct
import threading

import numpy as np
import simplejpeg

from lerobot_serve.contract.cdr import CdrReader, CdrWriter
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.recording.write_queue import ReceivedMessage

RAW_TYPE, COMPRESSED_TYPE = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
SUFFIX = '/compressed'
# as for policies; about 40 kB for a picture of 480 x 640
QUALITY = 90
# frames that wait for the compressor; a second of two cameras would be 55 MB
WAITING_FRAMES = 16
FRAME_LIMIT, TEXT_LIMIT = 1 << 28, 256
STAMP, SIZE, BYTE, STEP = (struct.Struct(f) for f in ('<iI', '<II', '<B', '<I'))
# encoding -> channels in the message, and the name of simplejpeg
ENCODINGS = {
    'rgb8': (3, 'RGB'),
    'bgr8': (3, 'BGR'),
    'rgba8': (4, 'RGBA'),
    'bgra8': (4, 'BGRA'),
    'mono8': (1, 'GRAY'),
}


def compressed(raw: bytes) -> bytes | None:
    """
    Return the CDR bytes of a CompressedImage for those of an Image; None for a frame that JPEG
    cannot carry. Raises Malformed.
    """
    reader = CdrReader(raw)
    seconds, nanoseconds = reader.unpack(STAMP, align=4)
    frame_id = reader.string(TEXT_LIMIT, 'frame_id')
    height, width = reader.unpack(SIZE, align=4)
    encoding = reader.string(TEXT_LIMIT, 'encoding')
    reader.unpack(BYTE, align=1)
    (step,) = reader.unpack(STEP, align=4)
    data = reader.block(FRAME_LIMIT, 'data')
    if encoding not in ENCODINGS:
        return None
    channels, name = ENCODINGS[encoding]
    if not (0 < width * channels <= step and height > 0 and height * step <= data.size):
        raise Malformed('frame', f'{height} x {width} {encoding} in {data.size} bytes')
    rows = data[: height * step].reshape(height, step)[:, : width * channels]
    frame = np.ascontiguousarray(rows).reshape(height, width, channels)
    subsampling = 'Gray' if channels == 1 else '420'
    try:
        jpeg = simplejpeg.encode_jpeg(
            frame, QUALITY, name, colorsubsampling=subsampling, fastdct=False
        )
    except ValueError as error:
        raise Malformed('frame', f'{height} x {width} is no JPEG: {error}') from None
    writer = CdrWriter()
    writer.pack(STAMP, seconds, nanoseconds, align=4)
    writer.string(frame_id, TEXT_LIMIT)
    writer.string('jpeg', TEXT_LIMIT)
    writer.block(jpeg, FRAME_LIMIT, 'data')
    return writer.finish()


class FrameCompressor:
    """
    Compresses in a thread that runs `run`. `put` never waits: while too many frames wait, the
    newest is dropped and counted.
    """

    def __init__(
        self, deposit: Callable[[ReceivedMessage], None], *, waiting_frames: int = WAITING_FRAMES
    ) -> None:
        self._deposit, self._limit = deposit, waiting_frames
        self._waiting: deque[ReceivedMessage] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.dropped: Counter[str] = Counter()

    def put(self, message: ReceivedMessage) -> None:
        """Add a frame. Executor thread."""
        with self._changed:
            if self._closing:
                return
            if len(self._waiting) >= self._limit:
                self.dropped[message.topic] += 1
                return
            self._waiting.append(message)
            self._changed.notify()

    def close(self) -> None:
        """Make the thread compress what waits, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def run(self) -> None:
        """Compress until `close`."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                message = self._waiting.popleft()
            self._compress(message)

    def _compress(self, message: ReceivedMessage) -> None:
        try:
            data = compressed(message.data)
        except Malformed:
            # kept as it came: it may be what the highlight is about
            data = None
        if data is None:
            self._deposit(message)
        else:
            self._deposit(message._replace(topic=message.topic + SUFFIX, data=data))
