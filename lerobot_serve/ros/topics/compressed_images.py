# SPDX-License-Identifier: Apache-2.0
"""
Decode sensor_msgs/CompressedImage: JPEG and PNG. Pure functions; any thread.

The first bytes identify the format: drivers fill in `format` inconsistently.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage
import simplejpeg

from lerobot_serve.arrays import FrameArray
from lerobot_serve.wire.errors import Malformed
from lerobot_serve.wire.image_codec import decode, PIXELS_LIMIT
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.schema import Codec

# image name in error texts
ERROR_CONTEXT = 'of sensor_msgs/CompressedImage'
JPEG, JPEG_END = b'\xff\xd8\xff', b'\xff\xd9'
PNG = b'\x89PNG\r\n\x1a\n'
BASELINE, START_OF_SCAN = 0xC0, 0xDA
# markers in the range of frame headers that are tables
NON_FRAME_MARKERS = (0xC4, 0xC8, 0xCC)
# channels of a decoded PNG -> channel order for RGB without alpha
PNG_ORDERS = {1: (0,), 3: (2, 1, 0), 4: (2, 1, 0)}


@dataclass(frozen=True, slots=True)
class JpegHeader:
    """The frame header of a JPEG."""

    kind: int
    bits: int
    height: int
    width: int
    channels: int


def frame_from_compressed(message: CompressedImage) -> FrameArray:
    """Return height x width x 1 or 3, RGB. Raises Malformed."""
    data = message.data.tobytes()
    if data.startswith(JPEG):
        return _frame_from_jpeg(data)
    if data.startswith(PNG):
        return _frame_from_png(data)
    raise Malformed(
        'unknown_encoding', f'compressed image: {message.format!r} is neither JPEG nor PNG'
    )


def passthrough_jpeg(message: CompressedImage) -> Image | None:
    """
    Return a JPEG in wire form, with an empty name; None for an image that must be decoded first.

    Only a complete baseline JPEG of three channels passes, with a header that the server can read.
    """
    data = message.data.tobytes()
    header = jpeg_header(data) if data.startswith(JPEG) else None
    # some cameras append padding after the end marker
    if header is None or not data.rstrip(b'\0').endswith(JPEG_END):
        return None
    if (header.kind, header.bits, header.channels) != (BASELINE, 8, 3):
        return None
    if not 0 < header.height * header.width <= PIXELS_LIMIT:
        return None
    try:
        simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    return Image('', header.height, header.width, data, Codec.JPEG)


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Return the frame header of a JPEG, None when there is none."""
    at = 2
    while at + 10 <= len(data) and data[at] == 0xFF and data[at + 1] != START_OF_SCAN:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in NON_FRAME_MARKERS:
            height, width = (int.from_bytes(data[i : i + 2], 'big') for i in (at + 5, at + 7))
            return JpegHeader(marker, data[at + 4], height, width, data[at + 9])
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], 'big')
    return None


def _frame_from_jpeg(data: bytes) -> FrameArray:
    header = jpeg_header(data)
    if header is None:
        raise Malformed('bad_jpeg', 'compressed image: a JPEG without a frame')
    channels = 1 if header.channels == 1 else 3
    return decode(Image(ERROR_CONTEXT, header.height, header.width, data, Codec.JPEG, channels))


def _frame_from_png(data: bytes) -> FrameArray:
    """Decode after a check of the size: a small file may declare gigabytes of pixels."""
    # IHDR is always the first chunk
    width, height = (int.from_bytes(data[i : i + 4], 'big') for i in (16, 20))
    if not 0 < height * width <= PIXELS_LIMIT:
        raise Malformed(
            'wrong_shape',
            f'compressed image: {height}x{width} is not a frame of at most {PIXELS_LIMIT} pixels',
        )
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise Malformed('bad_png', 'compressed image: incomplete PNG')
    frame = pixels.reshape(*pixels.shape[:2], -1)
    return np.ascontiguousarray(frame[:, :, PNG_ORDERS[frame.shape[2]]])
