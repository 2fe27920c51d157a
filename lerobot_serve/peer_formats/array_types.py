# SPDX-License-Identifier: Apache-2.0
"""Check element type, shape and size of a foreign array before it is built. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
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
