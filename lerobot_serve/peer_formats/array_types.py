# SPDX-License-Identifier: Apache-2.0
"""
Foreign arrays: element type, shape and size are checked before one is built; and the npy format.

numpy's own reader evaluates the header of npy as a Python literal and can unpickle; this one
matches the header that numpy writes for numeric arrays, and refuses every other. Any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
import io
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS_LIMIT, DIMENSION_LIMIT = 6, 1 << 24
# numbers only: an object array would hold pickles
_KINDS = ('b1', 'i1', 'u1', 'i2', 'i4', 'i8', 'u2', 'u4', 'u8', 'f2', 'f4', 'f8')
# as numpy writes them
TYPES = {
    f'{order}{kind}': np.dtype(f'{order}{kind}')
    for kind in _KINDS
    for order in ('|' if kind.endswith('1') else '<>')
}
MAGIC = b'\x93NUMPY'
# version -> bytes of the length field
VERSIONS = {b'\x01\x00': 2, b'\x02\x00': 4, b'\x03\x00': 4}
HEADER_LIMIT_BYTES = 1024
HEADERS_KEPT = 64
HEADER = re.compile(
    rb"\{'descr': '([^']{2,4})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,10}, ?)*(?:\d{1,10})?)\),? ?\}\s*"
)


class PeerFormatError(ValueError):
    """Data of another project is invalid or over a limit; the text says which."""


def numeric_type(given: object) -> np.dtype[Any]:
    """Return the dtype that numpy writes as `given`. Raises PeerFormatError."""
    name = str(given, 'ascii', 'replace') if isinstance(given, memoryview) else given
    found = TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        shown = repr(name)[:40] if isinstance(name, str) else type(given).__name__
        raise PeerFormatError(f'an array has the type {shown}; allowed are {", ".join(TYPES)}')
    return found


def array_view(
    data: bytes | memoryview, kind: np.dtype[Any], shape: Sequence[object], *, order: str = 'C'
) -> NDArray[Any]:
    """
    Return an array over `data`, which must have exactly the size of the shape.

    Nothing is allocated or copied. Raises PeerFormatError.
    """
    if len(shape) > DIMENSIONS_LIMIT:
        raise PeerFormatError(
            f'an array must have at most {DIMENSIONS_LIMIT} dimensions, got {len(shape)}'
        )
    expected, sizes = kind.itemsize, list[int]()
    for size in shape:
        if type(size) is not int or not 0 <= size <= DIMENSION_LIMIT:
            raise PeerFormatError(
                f'a dimension of an array must be in [0, {DIMENSION_LIMIT}], got {repr(size)[:40]}'
            )
        expected *= size
        sizes.append(size)
    if len(data) != expected:
        raise PeerFormatError(
            f'an array of shape {tuple(sizes)} and type {kind.str} has {expected} bytes, '
            f'got {len(data)}'
        )
    flat: NDArray[Any] = np.frombuffer(data, kind)
    return flat.reshape(sizes, order='F' if order == 'F' else 'C')


def read_npy(data: bytes | memoryview) -> NDArray[Any]:
    """Return an array over `data`, which nothing changes. Raises PeerFormatError."""
    width = VERSIONS.get(bytes(data[6:8]), 0)
    if data[:6] != MAGIC or not width:
        raise PeerFormatError('an array must be in the npy format, version 1 to 3')
    begin = 8 + width
    length = int.from_bytes(data[8:begin], 'little')
    if length > HEADER_LIMIT_BYTES or begin + length > len(data):
        raise PeerFormatError(
            f'the header of an npy array must have at most {HEADER_LIMIT_BYTES} bytes, '
            f'got {length} in {len(data)} bytes'
        )
    kind, shape, order = _parsed(bytes(data[begin : begin + length]))
    return array_view(memoryview(data)[begin + length :], kind, shape, order=order)


@lru_cache(HEADERS_KEPT)
def _parsed(header: bytes) -> tuple[np.dtype[Any], tuple[int, ...], str]:
    """Return type, shape and order; a client sends the same headers again."""
    match = HEADER.fullmatch(header)
    if match is None:
        raise PeerFormatError(f'unknown npy header {header!r:.120}')
    kind, fortran, sizes = match.groups()
    shape = tuple(int(size) for size in sizes.replace(b' ', b'').split(b',') if size)
    return numeric_type(kind.decode('latin1')), shape, 'F' if fortran == b'True' else 'C'


def write_npy(array: NDArray[Any]) -> bytes:
    """Return the array in the npy format. Raises ValueError for an array of objects."""
    output = io.BytesIO()
    np.save(output, array, allow_pickle=False)
    return output.getvalue()
