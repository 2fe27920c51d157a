# SPDX-License-Identifier: Apache-2.0
"""Convert image messages to and from arrays. Pure; any thread."""

from __future__ import annotations

import array

import numpy as np
from sensor_msgs.msg import Image as RosImage

from lerobot_serve.arrays import FrameArray
from lerobot_serve.contract.errors import Malformed

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
