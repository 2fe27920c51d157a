# SPDX-License-Identifier: Apache-2.0
"""
Measure the divergence between rows of the shadow and commanded rows. Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

from lerobot_serve.arrays import Float32Array


class Incomparable(ValueError):
    """Two chunks that cannot be compared; `reason` is the drop reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Divergence:
    """Root mean squares of the differences; NaN for non-finite values."""

    rows: int
    overall: float
    per_action: tuple[float, ...]


def shared_rows(commanded: Mapping[int, Float32Array], others: Float32Array) -> list[int]:
    """Return the sorted numbers of the rows that both have. Raises Incomparable."""
    columns = len(next(iter(commanded.values()), ()))
    if columns != others.shape[1]:
        raise Incomparable('shadow_shape')
    shared = sorted(number for number in commanded if number < len(others))
    if not shared:
        raise Incomparable('shadow_short')
    return shared


def divergence(rows: Float32Array, others: Float32Array) -> Divergence:
    """Return the divergence between two arrays of equal shape."""
    with np.errstate(all='ignore'):
        squares = np.square(others.astype(np.float64) - rows)
        per_action = np.sqrt(squares.mean(0))
        overall = np.sqrt(squares.mean())
    finite = [float(value) if np.isfinite(value) else nan for value in (overall, *per_action)]
    return Divergence(len(rows), finite[0], tuple(finite[1:]))
