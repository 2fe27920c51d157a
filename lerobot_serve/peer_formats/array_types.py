# SPDX-License-Identifier: Apache-2.0
"""Check element type, shape and size of a foreign array before it is built. Any thread."""

from __future__ import annotations

from collections.abc import Sequence
import math
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS_LIMIT = 8
# numbers only: an object array would hold pickles
NUMERIC = re.compile(r'[<>|=]?(b1|[iu][1248]|f[248])')


class PeerFormatError(ValueError):
    """Data of another project is invalid or over a limit; the text says which."""


def numeric_type(text: object) -> np.dtype[Any]:
    """Return the dtype that numpy writes as `text`. Raises PeerFormatError."""
    if not isinstance(text, str) or not NUMERIC.fullmatch(text):
        raise PeerFormatError(
            f'the element type of an array must be a bool, integer or float, got {text!r:.40}'
        )
    return np.dtype(text)


def array_view(
    data: bytes | memoryview, kind: np.dtype[Any], shape: Sequence[object], *, order: str = 'C'
) -> NDArray[Any]:
    """
    Return a read-only array over `data`, which must have exactly the size of the shape.

    Nothing is allocated or copied. Raises PeerFormatError.
    """
    sizes = [size for size in shape if type(size) is int and size >= 0]
    if len(sizes) != len(shape) or len(sizes) > DIMENSIONS_LIMIT:
        raise PeerFormatError(
            f'the shape of an array must be at most {DIMENSIONS_LIMIT} sizes, got {shape!r:.80}'
        )
    expected = math.prod(sizes) * kind.itemsize
    if len(data) != expected:
        raise PeerFormatError(
            f'an array of shape {tuple(sizes)!r:.80} of {kind} has {expected} bytes, '
            f'got {len(data)}'
        )
    flat: NDArray[Any] = np.frombuffer(data, kind)
    return flat.reshape(sizes, order='F' if order == 'F' else 'C')
