# SPDX-License-Identifier: Apache-2.0
"""
Convert image messages to and from arrays; decode sensor_msgs/CompressedImage, JPEG and PNG. Pure;
any thread. The first bytes identify the format: drivers fill in `format` inconsistently.
"""

from __future__ import annotations

import array

import cv2
import numpy as np
from sensor_msgs.msg import CompressedImage
from sensor_msgs.msg import Image as RosImage

from lerobot_serve.arrays import FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import decode
from lerobot_serve.contract.schema import Codec
from lerobot_serve.picture_headers import (
    JPEG,
    PIXELS_LIMIT,
    PNG,
    read_jpeg_header,
    UnreadablePicture,
)

# encoding -> (channel type, channels, channel order for RGB)
ENCODINGS = {
    'rgb8': (np.uint8, 3, None),
    'bgr8': (np.uint8, 3, (2, 1, 0)),
    'mono8': (np.uint8, 1, None),
    '16UC1': (np.uint16, 1, None),
}


def frame_from_image(image: RosImage) -> FrameArray:
    """
    Return height x width x channels, RGB; a view where possible. Raises Malformed.
    """
    if image.encoding not in ENCODINGS:
        raise Malformed(
            'unknown_encoding',
            f'image encoding {image.encoding!r} is not one of {", ".join(ENCODINGS)}',
        )
    kind, channels, order = ENCODINGS[image.encoding]
    row_bytes = image.width * channels * np.dtype(kind).itemsize
    if not image.width or not image.height or image.step < row_bytes:
        raise Malformed('wrong_shape', f'{image.width}x{image.height} with a step of {image.step}')
    if len(image.data) < image.step * image.height:
        raise Malformed(
            'wrong_shape',
            f'{len(image.data)} bytes cannot be {image.height} rows of {image.step} bytes',
        )
    rows = np.frombuffer(image.data, np.uint8, image.step * image.height).reshape(image.height, -1)
    big_endian = image.is_bigendian and kind is np.uint16
    pixels = np.ascontiguousarray(rows[:, :row_bytes]).view('>u2' if big_endian else kind)
    frame = pixels.reshape(image.height, image.width, channels)
    return frame if order is None else np.ascontiguousarray(frame[:, :, order])


def image_from_frame(frame: FrameArray, frame_id: str) -> RosImage:
    """Return an rgb8 image of height x width x 3 bytes, with an empty stamp."""
    height, width, _ = frame.shape
    image = RosImage(height=height, width=width, encoding='rgb8', step=3 * width)
    image.header.frame_id = frame_id
    image.data = array.array('B', np.ascontiguousarray(frame).tobytes())
    return image


# image name in error texts
ERROR_CONTEXT = 'of sensor_msgs/CompressedImage'
JPEG_END = b'\xff\xd9'
# channels of a decoded PNG -> channel order for RGB without alpha
PNG_ORDERS = {1: (0,), 3: (2, 1, 0), 4: (2, 1, 0)}


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

    Only a complete JPEG of three channels passes, with a header that the server accepts.
    """
    data = message.data.tobytes()
    # some cameras append padding after the end marker
    if not data.rstrip(b'\0').endswith(JPEG_END):
        return None
    try:
        size = read_jpeg_header(data)
    except UnreadablePicture:
        return None
    return Image('', size.height, size.width, data, Codec.JPEG) if size.channels == 3 else None


def _frame_from_jpeg(data: bytes) -> FrameArray:
    try:
        size = read_jpeg_header(data)
    except UnreadablePicture as error:
        raise Malformed('bad_jpeg', f'compressed image: the JPEG {error}') from None
    return decode(Image(ERROR_CONTEXT, size.height, size.width, data, Codec.JPEG, size.channels))


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
