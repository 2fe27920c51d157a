# SPDX-License-Identifier: Apache-2.0
"""
Encode frames as CameraImage content, and decode them.

Frames are RGB everywhere (height x width x channels), and simplejpeg reads and writes RGB: no
channel is swapped. JPEG releases the GIL, so `encode_all` and `decode_all` of ImageCodecPool work
on the cameras in parallel.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import simplejpeg

from lerobot_serve.arrays import FrameArray, Uint8Array
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.schema import Codec
from lerobot_serve.picture_headers import PIXELS_LIMIT, read_jpeg_header, UnreadablePicture

T = TypeVar('T')
R = TypeVar('R')
COLORSPACE = {1: 'GRAY', 3: 'RGB'}
CHANNEL_TYPES: dict[int, np.dtype[np.uint8 | np.uint16]] = {
    1: np.dtype('u1'),
    2: np.dtype('<u2'),
}


def encode(
    name: str, frame: FrameArray, codec: Codec, *, quality: int = 90, steps_back: int = 0
) -> Image:
    """Return one frame in wire form. Raw frames are not copied here. Raises Unencodable."""
    if frame.ndim == 2:
        frame = frame[:, :, None]
    if not is_frame(frame):
        raise Unencodable(
            f'camera {name}: a frame must be height x width x 1 or 3 of uint8 or uint16, at most '
            f'{PIXELS_LIMIT} pixels, got {frame.shape} of {frame.dtype}'
        )
    height, width, channels = frame.shape
    data: Uint8Array | bytes
    if codec == Codec.RAW:
        data = raw_pixels(frame)
    elif codec == Codec.JPEG:
        data = encode_jpeg(name, frame, quality)
    else:
        raise Unencodable(f'camera {name}: codec must be 1 (JPEG) or 2 (raw), got {codec}')
    return Image(
        name,
        height,
        width,
        data,
        codec=codec,
        channels=channels,
        channel_bytes=frame.itemsize,
        steps_back=steps_back,
    )


def raw_pixels(frame: FrameArray) -> Uint8Array:
    """Return the bytes of a frame, row after row; most are not copied."""
    if frame.itemsize > 1 or not frame.flags.c_contiguous:
        frame = np.ascontiguousarray(frame, CHANNEL_TYPES[frame.itemsize])
    return frame.reshape(-1).view(np.uint8)


def is_frame(frame: FrameArray) -> bool:
    return (
        frame.ndim == 3
        and frame.shape[2] in COLORSPACE
        and frame.dtype.kind == 'u'
        and frame.itemsize in CHANNEL_TYPES
        and 0 < frame.shape[0] * frame.shape[1] <= PIXELS_LIMIT
    )


def encode_jpeg(name: str, frame: FrameArray, quality: int) -> bytes:
    if frame.dtype != np.uint8:
        raise Unencodable(
            f'camera {name}: JPEG has 8 bits a channel, got {frame.dtype}; send it raw'
        )
    channels = frame.shape[2]
    try:
        jpeg: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(frame),
            quality,
            COLORSPACE[channels],
            # as in the videos that most policies are trained on; half the time of 4:4:4
            colorsubsampling='420' if channels == 3 else 'Gray',
            fastdct=False,
        )
        return jpeg
    except ValueError as error:
        raise Unencodable(
            f'camera {name}: cannot encode {frame.shape} as JPEG at quality {quality} ({error})'
        ) from None


def decode(image: Image) -> FrameArray:
    """Return height x width x channels. A raw frame is a read-only view. Raises Malformed."""
    pixels = image.height * image.width
    if not 0 < pixels <= PIXELS_LIMIT or image.channels not in COLORSPACE:
        raise Malformed(
            'wrong_shape',
            f'camera {image.name}: {image.height}x{image.width}x{image.channels} '
            f'is not a frame of 1 or 3 channels and at most {PIXELS_LIMIT} pixels',
        )
    if image.codec == Codec.RAW:
        return decode_raw(image)
    if image.codec == Codec.JPEG:
        return decode_jpeg(image)
    raise Malformed(
        'unknown_codec',
        f'camera {image.name}: codec must be 1 (JPEG) or 2 (raw), got {image.codec}',
    )


def decode_raw(image: Image) -> FrameArray:
    if image.channel_bytes not in CHANNEL_TYPES:
        raise Malformed(
            'wrong_shape',
            f'camera {image.name}: channel_bytes must be 1 or 2, got {image.channel_bytes}',
        )
    shape = (image.height, image.width, image.channels)
    expected = image.height * image.width * image.channels * image.channel_bytes
    if len(image.data) != expected:
        raise Malformed(
            'wrong_shape',
            f'camera {image.name}: {len(image.data)} bytes cannot be a raw frame of '
            f'{shape}, which has {expected}',
        )
    if image.channel_bytes == 1 and isinstance(image.data, np.ndarray):
        return image.data.reshape(shape)
    return np.frombuffer(image.data, CHANNEL_TYPES[image.channel_bytes]).reshape(shape)


def check_jpeg(image: Image) -> None:
    """Raise Malformed for a JPEG that may not be decoded or has another size than declared."""
    try:
        size = read_jpeg_header(image.data)
    except UnreadablePicture as error:
        raise Malformed('bad_jpeg', f'camera {image.name}: the JPEG {error}') from None
    if (size.height, size.width) != (image.height, image.width):
        raise Malformed(
            'wrong_shape',
            f'camera {image.name}: the JPEG is {size.height}x{size.width}, '
            f'the message declares {image.height}x{image.width}',
        )


def decode_jpeg(image: Image) -> FrameArray:
    """Decode after a check of the header."""
    try:
        check_jpeg(image)
        frame: Uint8Array = simplejpeg.decode_jpeg(
            image.data, COLORSPACE[image.channels], strict=True
        )
        return frame
    except (ValueError, RuntimeError) as error:
        if isinstance(error, Malformed):
            raise
        raise Malformed('bad_jpeg', f'camera {image.name}: incomplete JPEG ({error})') from None


class ImageCodecPool:
    """
    Threads that encode or decode the cameras of one robot in parallel; one owner thread calls it.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads - 1, 'image') if threads > 1 else None

    def encode_all(
        self, frames: dict[str, FrameArray], codec: Codec, quality: int
    ) -> tuple[Image, ...]:
        def one(item: tuple[str, FrameArray]) -> Image:
            return encode(item[0], item[1], codec, quality=quality)

        return self._map(one, list(frames.items()), parallel=codec == Codec.JPEG)

    def decode_all(self, images: tuple[Image, ...]) -> tuple[FrameArray, ...]:
        return self._map(
            decode, list(images), parallel=any(image.codec == Codec.JPEG for image in images)
        )

    def close(self) -> None:
        if self._pool:
            self._pool.shutdown()

    def _map(self, function: Callable[[T], R], items: list[T], *, parallel: bool) -> tuple[R, ...]:
        if self._pool and parallel and len(items) > 1:
            others = [self._pool.submit(function, item) for item in items[1:]]
            # the caller processes one image itself: a hand-over costs as much as a small image
            return (function(items[0]), *(other.result() for other in others))
        return tuple(map(function, items))
