# SPDX-License-Identifier: Apache-2.0
"""What the head of an image message says about its frame, without its pixels. Pure; any thread."""

from __future__ import annotations

import struct
from typing import NamedTuple

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.tools.bags.images import (
    COMPRESSED_TYPE,
    CompressedImage,
    RAW_TYPE,
    RawImage,
)

PNG = b'\x89PNG\r\n\x1a\n'
# width, height, bits and colour type of the first chunk of a PNG
PNG_HEAD_AT, PNG_HEAD = 16, struct.Struct('>IIBB')
JPEG = b'\xff\xd8'
# length of a segment; in a frame segment also bits, height, width, components
SEGMENT, JPEG_FRAME = struct.Struct('>H'), struct.Struct('>BHHB')
FRAME_MARKERS = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


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


def _compressed_head(image: CompressedImage) -> FrameHead | None:
    form, data = image.format, bytes(image.data)
    if data.startswith(PNG):
        width, height, bits, colour = PNG_HEAD.unpack_from(data, PNG_HEAD_AT)
        return FrameHead(height, width, f'{form} {bits} {colour}')
    return _jpeg_head(data, len(JPEG), form) if data.startswith(JPEG) else None


def _jpeg_head(data: bytes, at: int, form: str) -> FrameHead | None:
    """Walk over the segments of a JPEG up to the one with its size."""
    while at + 2 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker in FRAME_MARKERS:
            bits, height, width, parts = JPEG_FRAME.unpack_from(data, at + 2 + SEGMENT.size)
            return FrameHead(height, width, f'{form} {bits} {parts}')
        # a byte of filling
        if marker == 0xFF:
            at += 1
            continue
        at += 2 + SEGMENT.unpack_from(data, at + 2)[0]
    return None
