# SPDX-License-Identifier: Apache-2.0
"""
How far a shadow's rows are from what was commanded, where both have them. Pure functions; any
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

from lerobot_serve.arrays import Float32Array


class Incomparable(ValueError):
    """Two chunks that cannot be compared; `reason` is one word for the counters."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Divergence:
    """Root mean squares of the differences; NaN where there is something that is no number."""

    rows: int
    overall: float
    per_action: tuple[float, ...]


def shared_rows(commanded: Mapping[int, Float32Array], others: Float32Array) -> list[int]:
    """Return the numbers of the rows that both have, in order. Raises Incomparable."""
    columns = len(next(iter(commanded.values()), ()))
    if columns != others.shape[1]:
        raise Incomparable('shadow_shape')
    shared = sorted(number for number in commanded if number < len(others))
    if not shared:
        raise Incomparable('shadow_short')
    return shared


def divergence(ours: Float32Array, theirs: Float32Array) -> Divergence:
    """Return how far rows of one shape are apart."""
    with np.errstate(all='ignore'):
        squares = np.square(theirs.astype(np.float64) - ours)
        per_action = np.sqrt(squares.mean(0))
        overall = np.sqrt(squares.mean())
    finite = [float(value) if np.isfinite(value) else nan for value in (overall, *per_action)]
    return Divergence(len(ours), finite[0], tuple(finite[1:]))
