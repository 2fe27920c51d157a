# SPDX-License-Identifier: Apache-2.0
"""
Read and write one array in the npy format, as GR00T sends it.

numpy's own reader evaluates the header as a Python literal and can unpickle; this one matches the
header that numpy writes for numeric arrays, and refuses every other. Any thread.
"""

from __future__ import annotations

from functools import lru_cache
import io
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.peer_formats.array_types import array_view, numeric_type, PeerFormatError

MAGIC = b'\x93NUMPY'
# version -> bytes of the length field
VERSIONS = {b'\x01\x00': 2, b'\x02\x00': 4, b'\x03\x00': 4}
HEADER_LIMIT_BYTES = 1024
HEADERS_KEPT = 64
HEADER = re.compile(
    rb"\{'descr': '([^']{2,4})', 'fortran_order': (True|False), "
    rb"'shape': \(((?:\d{1,10}, ?)*(?:\d{1,10})?)\),? ?\}\s*"
)


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
