# SPDX-License-Identifier: Apache-2.0
"""What the head of an image message says about its frame, without its pixels. Pure; any thread."""

from __future__ import annotations

import struct
from typing import NamedTuple

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.picture_headers import PNG, read_jpeg_header, UnreadablePicture
from lerobot_serve.tools.bags.message import (
    COMPRESSED_TYPE,
    CompressedImage,
    RAW_TYPE,
    RawImage,
)

# width, height, bits and colour type of the first chunk of a PNG
PNG_HEAD_AT, PNG_HEAD = 16, struct.Struct('>IIBB')


class FrameHead(NamedTuple):
    """Frames with equal heads have equal shapes. `pixels` names their encoding."""

    height: int
    width: int
    pixels: str


def head_of(kind: str, data: bytes) -> FrameHead | None:
    """Return the head of an image message; None for another type, or one that has no frame."""
    try:
        if kind == RAW_TYPE:
            image = decode(RawImage, data)
            return FrameHead(image.height, image.width, image.encoding)
        if kind == COMPRESSED_TYPE:
            return _compressed_head(decode(CompressedImage, data))
    except (Malformed, struct.error):
        return None
    return None


def _compressed_head(image: CompressedImage) -> FrameHead:
    form, data = image.format, bytes(image.data)
    if data.startswith(PNG):
        width, height, bits, colour = PNG_HEAD.unpack_from(data, PNG_HEAD_AT)
        return FrameHead(height, width, f'{form} {bits} {colour}')
    try:
        size = read_jpeg_header(data)
    except UnreadablePicture as error:
        # decoding one of them gives the reason
        return FrameHead(0, 0, str(error))
    return FrameHead(size.height, size.width, f'{form} {size.channels}')
