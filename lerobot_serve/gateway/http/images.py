# SPDX-License-Identifier: Apache-2.0
"""
Pictures of a JSON body -> RGB arrays. Sizes are read from the head of a file before it is decoded.
Pure; any thread.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Annotated, Any

import cv2
from msgspec import Meta, UNSET
import numpy as np
import simplejpeg

from lerobot_serve.arrays import Uint8Array
from lerobot_serve.files.load import Record
from lerobot_serve.gateway.http.fields import checked, FieldError
from lerobot_serve.picture_headers import JPEG, PNG, read_jpeg_header

# of all pictures of one request
PIXELS_LIMIT = 16_777_216
# of a file that is pasted from a web page
DATA_URL = 'data:image/'
ALLOWED = (
    'base64 of a JPEG or PNG file; or {"data": base64 of height*width*3 bytes, "shape": [height, '
    'width, 3]}; or nested lists [height][width][3] of 0 to 255'
)


class ImageObject(Record, frozen=True):
    """A file, or the pixels of a shape."""

    data: Annotated[str, Meta(description='base64')]
    shape: Annotated[
        Any,
        Meta(
            extra_json_schema={
                'type': 'array',
                'items': {'type': 'integer', 'minimum': 1},
                'minItems': 3,
                'maxItems': 3,
                'description': 'height, width, 3; then data are raw RGB bytes, row by row',
            }
        ),
    ] = UNSET


# what the OpenAPI description says; nested lists are checked at once by `image_of`
Image = Annotated[
    Annotated[str, Meta(extra_json_schema={'contentEncoding': 'base64'})]
    | ImageObject
    | list[list[list[Annotated[int, Meta(ge=0, le=255)]]]],
    Meta(
        extra_json_schema={
            'description': f'A picture in RGB: {ALLOWED}. Text may begin with '
            'data:image/...;base64,'
        }
    ),
]


class ManyPixels(Exception):
    """The pictures of a request have more pixels than may be decoded here."""


class PixelBudget:
    """
    The pixels that the pictures of one request may still have, and those that may be decoded
    here: above `here` nothing is decoded, however small the files are.
    """

    def __init__(self, left: int = PIXELS_LIMIT, here: int = PIXELS_LIMIT) -> None:
        self._left, self._here = left, here

    def take(self, field: str, height: int, width: int) -> None:
        """
        Raise FieldError where a picture is too large, ManyPixels where it is so for this place;
        before it is decoded.
        """
        if min(height, width) < 1 or height * width > self._left:
            raise FieldError(
                field,
                f'{height}x{width} pixels',
                f'1 to {self._left} pixels in all images',
            )
        self._left -= height * width
        self._here -= height * width
        if self._here < 0:
            raise ManyPixels


def image_of(field: str, given: Any, budget: PixelBudget) -> Uint8Array:
    """Return a picture, height x width x 3 in RGB. Raises FieldError."""
    if isinstance(given, str):
        return _from_file(field, _decoded(field, given), budget)
    if isinstance(given, dict):
        return _from_object(field, given, budget)
    if isinstance(given, list):
        return _from_lists(field, given, budget)
    raise FieldError(field, given, ALLOWED)


def _decoded(field: str, given: str) -> bytes:
    if given.startswith(DATA_URL):
        given = given.partition(',')[2]
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise FieldError(field, given, ALLOWED) from None


def _from_object(field: str, given: dict[str, Any], budget: PixelBudget) -> Uint8Array:
    image = checked(ImageObject, given, f'{field}.')
    data, shape = _decoded(field, image.data), image.shape
    if shape is UNSET:
        return _from_file(field, data, budget)
    is_shape = isinstance(shape, list) and len(shape) == 3 and shape[2] == 3
    if not (is_shape and all(type(size) is int and size > 0 for size in shape)):
        raise FieldError(f'{field}.shape', str(shape), '[height, width, 3]')
    budget.take(field, shape[0], shape[1])
    if len(data) != math.prod(shape):
        raise FieldError(
            f'{field}.data', f'{len(data)} bytes', f'{math.prod(shape)} bytes, by its shape'
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _from_file(field: str, data: bytes, budget: PixelBudget) -> Uint8Array:
    decode = _decode_png if data.startswith(PNG) else _decode_jpeg
    if not data.startswith((PNG, JPEG)):
        raise FieldError(field, f'{len(data)} bytes of another kind', ALLOWED)
    try:
        return decode(field, data, budget)
    except (ValueError, struct.error, cv2.error) as error:
        raise FieldError(
            field, f'a file that cannot be read: it {error}', 'a baseline JPEG or a PNG file'
        ) from None


def _decode_jpeg(field: str, data: bytes, budget: PixelBudget) -> Uint8Array:
    size = read_jpeg_header(data)
    budget.take(field, size.height, size.width)
    return np.asarray(simplejpeg.decode_jpeg(data, 'RGB'), np.uint8)


def _decode_png(field: str, data: bytes, budget: PixelBudget) -> Uint8Array:
    # the first chunk of a PNG is its header
    kind, width, height = struct.unpack_from('>4sII', data, len(PNG) + 4)
    if kind != b'IHDR':
        raise ValueError('begins without IHDR')
    budget.take(field, height, width)
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ValueError('cannot be decoded')
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), np.uint8)


def _from_lists(field: str, given: list[Any], budget: PixelBudget) -> Uint8Array:
    try:
        # checked as numbers of 64 bits: uint8 would wrap, or take truth values
        pixels = np.array(given)
    except (ValueError, OverflowError):
        raise FieldError(field, 'lists of different lengths', ALLOWED) from None
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype.kind != 'i':
        raise FieldError(field, f'lists of {pixels.shape}, {pixels.dtype}', ALLOWED)
    budget.take(field, pixels.shape[0], pixels.shape[1])
    if pixels.min() < 0 or pixels.max() > 255:
        raise FieldError(field, f'{pixels.min()} to {pixels.max()}', 'pixels of 0 to 255')
    return pixels.astype(np.uint8)
