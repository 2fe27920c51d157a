# SPDX-License-Identifier: Apache-2.0
"""Encode and decode the parts of observations and chunks: actions, images, extensions."""

from __future__ import annotations

from functools import lru_cache
import struct
from typing import Any

from msgspec import Struct
import numpy as np

from lerobot_serve.arrays import Float32Array, Uint8Array
from lerobot_serve.contract.cdr import (
    CdrReader,
    CdrWriter,
    checked_count,
    FLOAT32,
    packed_part,
    read_part,
)
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.limits import ID_LIMIT, KEY_LIMIT
from lerobot_serve.contract.records import Extension
from lerobot_serve.contract.schema import Codec

# far above the need of any robot, far below a harmful size
ACTION_VALUES_LIMIT = 1 << 20
IMAGE_BYTES_LIMIT = 64 << 20
IMAGES_LIMIT = 256
EXTENSIONS_LIMIT = 64
EXTENSION_BYTES_LIMIT = 1 << 20

ACTIONS_SHAPE = struct.Struct('<II')
# and the number of values
ACTIONS_HEAD = struct.Struct('<III')
IMAGE_LAYOUT = struct.Struct('<IIHBBB')
NO_ACTIONS = np.zeros((0, 0), np.float32)
# rows, columns and number of values
NO_ACTIONS_PART = bytes(12)


class Image(Struct, frozen=True, eq=False):
    """The fields of CameraImage.msg; `data` is any buffer of bytes."""

    name: str
    height: int
    width: int
    data: Uint8Array | bytes
    codec: int = Codec.RAW
    channels: int = 3
    channel_bytes: int = 1
    steps_back: int = 0


def write_actions(writer: CdrWriter, actions: Float32Array, what: str) -> None:
    if actions.ndim != 2:
        raise Unencodable(f'{what} must be rows x columns, got the shape {actions.shape}')
    if actions.shape == (0, 0):
        writer.align(4)
        writer.append_part(NO_ACTIONS_PART)
        return
    writer.pack(ACTIONS_SHAPE, *actions.shape, align=4)
    writer.floats(actions, ACTION_VALUES_LIMIT, what)


def read_actions(reader: CdrReader, what: str) -> Float32Array:
    rows, columns, size = reader.unpack(ACTIONS_HEAD, align=4)
    if not (rows or columns or size):
        return NO_ACTIONS
    values = reader.values(FLOAT32, checked_count(size, ACTION_VALUES_LIMIT, what))
    if values.size != rows * columns:
        raise Malformed(
            'wrong_shape', f'{what}: {values.size} values cannot be {rows} rows of {columns}'
        )
    return values.reshape(rows, columns)


def write_images(writer: CdrWriter, images: tuple[Image, ...]) -> None:
    writer.count(len(images), IMAGES_LIMIT, 'images')
    for image in images:
        writer.append_part(
            _image_part(
                writer.phase,
                image.name,
                image.height,
                image.width,
                image.steps_back,
                image.codec,
                image.channels,
                image.channel_bytes,
            )
        )
        writer.block(image.data, IMAGE_BYTES_LIMIT, f'camera {image.name}')


# typed: a float is not a height, though it may equal one
@lru_cache(maxsize=256, typed=True)
def _image_part(phase: int, name: str, *fields: int) -> bytes:
    """Return all fields of an image before its data."""

    def write(writer: CdrWriter) -> None:
        writer.string(name, ID_LIMIT)
        writer.pack(IMAGE_LAYOUT, *fields, align=4)

    return packed_part(phase, write)


def skip_actions(reader: CdrReader, what: str) -> None:
    reader.unpack(ACTIONS_SHAPE, align=4)
    reader.skip(ACTION_VALUES_LIMIT, what, 4)


def read_images(reader: CdrReader) -> tuple[Image, ...]:
    return tuple(read_image(reader) for _ in range(reader.count(IMAGES_LIMIT, 'images')))


def read_image(reader: CdrReader) -> Image:
    part = reader.part(ID_LIMIT, 'camera name', IMAGE_LAYOUT.size)
    name, height, width, steps_back, codec, channels, channel_bytes = _image_fields(part)
    data = reader.block(IMAGE_BYTES_LIMIT, f'camera {name}')
    return Image(
        name,
        height,
        width,
        data,
        codec=codec,
        channels=channels,
        channel_bytes=channel_bytes,
        steps_back=steps_back,
    )


@lru_cache(maxsize=256)
def _image_fields(part: bytes) -> tuple[Any, ...]:
    """Return the fields of an image before its data. Raises Malformed."""
    reader = read_part(part)
    return reader.string(ID_LIMIT, 'camera name'), *reader.unpack(IMAGE_LAYOUT, align=4)


def skip_images(reader: CdrReader) -> None:
    for _ in range(reader.count(IMAGES_LIMIT, 'images')):
        reader.skip_string(ID_LIMIT, 'camera name')
        reader.unpack(IMAGE_LAYOUT, align=4)
        reader.skip(IMAGE_BYTES_LIMIT, 'image')


def write_extensions(writer: CdrWriter, extensions: tuple[Extension, ...]) -> None:
    writer.count(len(extensions), EXTENSIONS_LIMIT, 'extensions')
    for extension in extensions:
        writer.string(extension.key, KEY_LIMIT)
        writer.block(extension.value, EXTENSION_BYTES_LIMIT, f'extension {extension.key}')


def read_extensions(reader: CdrReader) -> tuple[Extension, ...]:
    return tuple(
        Extension(
            reader.string(KEY_LIMIT, 'extension key'),
            reader.block(EXTENSION_BYTES_LIMIT, 'extension'),
        )
        for _ in range(reader.count(EXTENSIONS_LIMIT, 'extensions'))
    )


def find_extension(reader: CdrReader, key: str) -> Uint8Array | None:
    """Return the bytes of the first extension with this key, None without one."""
    for _ in range(reader.count(EXTENSIONS_LIMIT, 'extensions')):
        if reader.string(KEY_LIMIT, 'extension key') == key:
            return reader.block(EXTENSION_BYTES_LIMIT, 'extension')
        reader.skip(EXTENSION_BYTES_LIMIT, 'extension')
    return None
