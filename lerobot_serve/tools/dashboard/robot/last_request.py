# SPDX-License-Identifier: Apache-2.0
"""The last requests of one robot as bytes, and the images in them as JPEG. Any thread."""

from __future__ import annotations

from collections import OrderedDict
import threading

import numpy as np
import simplejpeg

from lerobot_serve.arrays import FrameArray, Uint8Array
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.image_codec import CHANNEL_TYPES, check_jpeg
from lerobot_serve.contract.schema import Codec

KEPT, KEPT_BYTES = 4, 64 << 20
QUALITY = 85


class LastRequests:
    """The newest requests, by their number; bounded in count and bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self._newest: int | None = None

    def put(self, seq: int, raw: bytes) -> None:
        """Keep a request."""
        with self._lock:
            self._kept[seq], self._newest = raw, seq
            self._kept.move_to_end(seq)
            while len(self._kept) > KEPT or (
                len(self._kept) > 1 and sum(map(len, self._kept.values())) > KEPT_BYTES
            ):
                self._kept.popitem(last=False)

    def newest(self) -> tuple[int, bytes] | None:
        with self._lock:
            return None if self._newest is None else (self._newest, self._kept[self._newest])

    def get(self, seq: int) -> bytes | None:
        with self._lock:
            return self._kept.get(seq)


def camera_names(raw: bytes) -> tuple[str, ...]:
    """Return the cameras of a request. Raises Malformed."""
    return tuple(image.name for image in present_images(raw))


def present_images(raw: bytes) -> list[Image]:
    """Return the images of the present, without those of the history. Raises Malformed."""
    return [image for image in wire_observation.decode(raw).images if not image.steps_back]


def jpeg_of(raw: bytes, camera: str) -> bytes | None:
    """
    Return the image of a camera as the policy saw it, None without one; raw pixels are encoded
    here. Raises Malformed.
    """
    found = next((image for image in present_images(raw) if image.name == camera), None)
    if found is None:
        return None
    if found.codec == Codec.JPEG:
        # the browser decodes it
        check_jpeg(found)
        return bytes(found.data)
    return encoded(found)


def encoded(image: Image) -> bytes:
    """Return raw pixels as JPEG; depth is scaled to 8 bits. Raises Malformed."""
    shape = image.height, image.width, image.channels
    kind = CHANNEL_TYPES.get(image.channel_bytes)
    pixels = np.frombuffer(image.data, np.uint8)
    if kind is None or image.channels not in (1, 3) or not all(shape):
        raise Malformed('wrong_shape', f'camera {image.name}: {shape} is not an image')
    if pixels.size != image.height * image.width * image.channels * image.channel_bytes:
        raise Malformed('wrong_shape', f'camera {image.name}: {pixels.size} bytes for {shape}')
    frame: Uint8Array = np.ascontiguousarray(eight_bits(pixels.view(kind)).reshape(shape))
    data: bytes = simplejpeg.encode_jpeg(
        frame, quality=QUALITY, colorspace='RGB' if image.channels == 3 else 'GRAY'
    )
    return data


def eight_bits(values: FrameArray) -> Uint8Array:
    """Return values as 8 bits; 16 bits are scaled so that the largest one is white."""
    if values.dtype == np.uint8:
        return values.view(np.uint8)
    largest = max(int(values.max(initial=0)), 1)
    return (values.astype(np.float32) * (255 / largest)).astype(np.uint8)
