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
import threading

import simplejpeg

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.message import (
    BagMessage,
    COMPRESSED_TYPE,
    CompressedImage,
    ENCODINGS,
    pixels_of,
    RawImage,
)

SUFFIX = '/compressed'
# as for policies; about 40 kB for a picture of 480 x 640
QUALITY = 90
# frames that wait for the compressor; a second of two cameras would be 55 MB
WAITING_FRAMES = 16


def compressed(raw: bytes) -> bytes | None:
    """
    Return the CDR bytes of a CompressedImage for those of an Image; None for a frame that JPEG
    cannot carry. Raises Malformed.
    """
    image = decode(RawImage, raw)
    found = ENCODINGS.get(image.encoding)
    if found is None or not found.colors:
        return None
    subsampling = 'Gray' if found.channels == 1 else '420'
    try:
        jpeg = simplejpeg.encode_jpeg(
            pixels_of(image), QUALITY, found.colors, colorsubsampling=subsampling, fastdct=False
        )
    except ValueError as error:
        raise Malformed(
            'frame', f'{image.height} x {image.width} is not a JPEG: {error}'
        ) from None
    return encode(CompressedImage(image.stamp, image.frame_id, 'jpeg', jpeg))


class FrameCompressor:
    """
    Compresses in a thread that runs `run`. `put` never waits: while too many frames wait, the
    newest is dropped and counted.
    """

    def __init__(
        self, deposit: Callable[[BagMessage], None], *, waiting_frames: int = WAITING_FRAMES
    ) -> None:
        self._deposit, self._limit = deposit, waiting_frames
        self._waiting: deque[BagMessage] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self.dropped: Counter[str] = Counter()

    def put(self, message: BagMessage) -> None:
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

    def _compress(self, message: BagMessage) -> None:
        try:
            data = compressed(message.data)
        except Malformed:
            # kept as it came: it may be what the highlight is about
            data = None
        if data is None:
            self._deposit(message)
        else:
            topic = message.topic + SUFFIX
            self._deposit(message._replace(topic=topic, type=COMPRESSED_TYPE, data=data))
