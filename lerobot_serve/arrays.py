# SPDX-License-Identifier: Apache-2.0
"""
Types of numpy arrays, by the type of their elements, with the shape in the comments; and the check
for finite values.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32Array: TypeAlias = NDArray[np.float32]
Float64Array: TypeAlias = NDArray[np.float64]
Uint8Array: TypeAlias = NDArray[np.uint8]
Uint16Array: TypeAlias = NDArray[np.uint16]
Int64Array: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
# camera images: height x width x channels, of 8 or 16 bits
FrameArray: TypeAlias = NDArray[np.uint8 | np.uint16]
# actions: float32 as sent, or float64 after a conversion of units
FloatArray: TypeAlias = NDArray[np.float32 | np.float64]

# up to so many values, a call of numpy costs more than they do
SMALL_SIZE = 32


def is_finite(values: NDArray[Any]) -> bool:
    """Return whether no value is NaN or infinite."""
    if values.size <= SMALL_SIZE and math.isfinite(sum(values.ravel().tolist())):
        return True
    # also of a sum that exceeds the largest number
    return bool(np.isfinite(values).all())
