# SPDX-License-Identifier: Apache-2.0
"""
Read the header of a picture before a decoder does. Plain; any thread.

The time of a decoder depends on what a file declares, not on its size: a progressive JPEG of 150
kB may have thousands of scans, each over all pixels. So a JPEG must be baseline with all of its
channels in the first scan, which is the only one a decoder then reads; encoders of cameras and of
this package write no other. Bytes, segments and pixels are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.arrays import Uint8Array

PIXELS_LIMIT = 64_000_000
JPEG, PNG = b'\xff\xd8\xff', b'\x89PNG\r\n\x1a\n'
SEQUENTIAL, START_OF_SCAN = (0xC0, 0xC1), 0xDA
PROGRESSIVE = (0xC2, 0xC6, 0xCA, 0xCE)
# tables, texts and what applications add; decoders skip others in ways of their own
SKIPPED = {0xC4, 0xDB, 0xDD, *range(0xE0, 0xF0), 0xFE}
SEGMENT_LIMIT = 256
# noise at the best quality has 4 bytes a pixel; previews and maker notes come before the pixels
BYTES_A_PIXEL, SPARE_BYTES = 6, 1 << 20


class UnreadablePicture(ValueError):
    """A picture that no decoder may read; the text continues "it ..."."""


@dataclass(frozen=True, slots=True)
class PictureSize:
    """Of a picture that may be decoded."""

    height: int
    width: int
    channels: int


def read_jpeg_header(data: bytes | memoryview | Uint8Array) -> PictureSize:
    """Return the size of a JPEG that may be decoded. Raises UnreadablePicture."""
    size: PictureSize | None = None
    if bytes(data[:3]) != JPEG:
        raise UnreadablePicture('does not begin as a JPEG does')
    at = 2
    for _ in range(SEGMENT_LIMIT):
        head = bytes(data[at : at + 10])
        if len(head) < 10 or head[0] != 0xFF:
            break
        marker = head[1]
        if marker == 0xFF:
            at += 1
            continue
        if marker == START_OF_SCAN:
            return _checked(size, scan_channels=head[4], size_bytes=len(data))
        if marker not in SKIPPED:
            if size is not None:
                raise UnreadablePicture('has two frames')
            size = _frame(marker, head)
        length = int.from_bytes(head[2:4], 'big')
        if length < 2:
            break
        at += 2 + length
    raise UnreadablePicture('has no complete header')


def _frame(marker: int, head: bytes) -> PictureSize:
    if marker in PROGRESSIVE:
        raise UnreadablePicture('is progressive; set the encoder to baseline')
    if marker not in SEQUENTIAL or head[4] != 8:
        raise UnreadablePicture('is not a baseline JPEG of 8 bits')
    return PictureSize(
        int.from_bytes(head[5:7], 'big'), int.from_bytes(head[7:9], 'big'), channels=head[9]
    )


def _checked(size: PictureSize | None, *, scan_channels: int, size_bytes: int) -> PictureSize:
    """Return the size at the first scan. Raises UnreadablePicture."""
    if size is None:
        raise UnreadablePicture('has no frame before its pixels')
    pixels = size.height * size.width
    if not 0 < pixels <= PIXELS_LIMIT or size.channels not in (1, 3):
        raise UnreadablePicture(
            f'is {size.height}x{size.width}x{size.channels}, not a frame of 1 or 3 channels and '
            f'at most {PIXELS_LIMIT} pixels'
        )
    if scan_channels != size.channels:
        raise UnreadablePicture(
            'has its channels in several scans; set the encoder to interleave them'
        )
    if size_bytes > BYTES_A_PIXEL * pixels + SPARE_BYTES:
        raise UnreadablePicture(f'has {size_bytes} bytes for {pixels} pixels')
    return size


def check_picture(data: bytes) -> None:
    """Raise UnreadablePicture for what is neither a JPEG nor a PNG that may be decoded."""
    if data.startswith(PNG):
        width, height = (int.from_bytes(data[i : i + 4], 'big') for i in (16, 20))
        if not 0 < height * width <= PIXELS_LIMIT:
            raise UnreadablePicture(f'is {height}x{width}, over {PIXELS_LIMIT} pixels')
    elif data.startswith(JPEG):
        read_jpeg_header(data)
    else:
        raise UnreadablePicture('is neither JPEG nor PNG')
