# SPDX-License-Identifier: Apache-2.0
"""The images of cameras in a bag: sensor_msgs/Image and CompressedImage. Pure; any thread."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

from msgspec import Struct
import numpy as np
from numpy.typing import NDArray

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.types import Bytes, Time, UInt8, UInt32

RAW_TYPE, COMPRESSED_TYPE = 'sensor_msgs/msg/Image', 'sensor_msgs/msg/CompressedImage'
DATA_LIMIT, NAME_LIMIT = 1 << 28, 4096


class RawImage(Struct, frozen=True, eq=False):
    """sensor_msgs/Image; `data` are a view of the message."""

    stamp: Time = Time()
    frame_id: Annotated[str, NAME_LIMIT] = ''
    height: UInt32 = 0
    width: UInt32 = 0
    encoding: Annotated[str, NAME_LIMIT] = ''
    is_bigendian: UInt8 = 0
    step: UInt32 = 0
    data: Annotated[Bytes, DATA_LIMIT] = b''


class CompressedImage(Struct, frozen=True, eq=False):
    """sensor_msgs/CompressedImage; `data` are a view of the message."""

    stamp: Time = Time()
    frame_id: Annotated[str, NAME_LIMIT] = ''
    format: Annotated[str, NAME_LIMIT] = ''
    data: Annotated[Bytes, DATA_LIMIT] = b''


class Encoding(NamedTuple):
    """The type and the channels of a pixel; `colors` is their order, empty for depth."""

    dtype: str
    channels: int
    colors: str = ''


ENCODINGS = {
    'rgb8': Encoding('u1', 3, 'RGB'),
    'bgr8': Encoding('u1', 3, 'BGR'),
    'rgba8': Encoding('u1', 4, 'RGBA'),
    'bgra8': Encoding('u1', 4, 'BGRA'),
    'mono8': Encoding('u1', 1, 'GRAY'),
    '16UC1': Encoding('u2', 1),
    'mono16': Encoding('u2', 1),
    '32FC1': Encoding('f4', 1),
}


def pixels_of(image: RawImage) -> NDArray[Any]:
    """Return height x width x channels in the order of the message. Raises Malformed."""
    if image.encoding not in ENCODINGS:
        raise Malformed('frame', f'image encoding {image.encoding!r} is not one of {[*ENCODINGS]}')
    kind, channels, _ = ENCODINGS[image.encoding]
    element = np.dtype(('>' if image.is_bigendian else '<') + kind)
    height, step, row_bytes = image.height, image.step, image.width * channels * element.itemsize
    data = np.frombuffer(image.data, np.uint8)
    if not (0 < row_bytes <= step and height > 0 and height * step <= data.size):
        raise Malformed('frame', f'{height} x {image.width} {image.encoding} in {data.size} bytes')
    rows = np.ascontiguousarray(data[: height * step].reshape(height, step)[:, :row_bytes])
    pixels = rows.view(element).astype(element.newbyteorder('='), copy=False)
    return pixels.reshape(height, image.width, channels)
