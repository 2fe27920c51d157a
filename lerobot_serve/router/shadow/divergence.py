# SPDX-License-Identifier: Apache-2.0
"""
Measure the divergence between rows of the shadow and commanded rows, in robot space and in
multiples of the spread of the live policy. Functions are pure.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np

from lerobot_serve.arrays import Float32Array

WINDOW_DRAWS = 200
POLICIES_LIMIT = 32


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


class PolicySpread:
    """
    The spreads of policies: the divergence between two draws for the same observation, of the last
    WINDOW_DRAWS draws of up to POLICIES_LIMIT policies. Owned by the thread `shadow`.
    """

    def __init__(self) -> None:
        self._squares: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, policy: str, rms: float) -> None:
        """Add the root mean square of the difference of two draws; skip a non-finite one."""
        if not 0 <= rms < float('inf'):
            return
        self._squares.setdefault(policy, deque(maxlen=WINDOW_DRAWS)).append(rms * rms)
        self._squares.move_to_end(policy)
        if len(self._squares) > POLICIES_LIMIT:
            self._squares.popitem(last=False)

    def of(self, policy: str) -> float:
        """Return the spread of a policy: the pooled root mean square; NaN without draws."""
        squares = self._squares.get(policy)
        return sqrt(sum(squares) / len(squares)) if squares else nan

    def in_spreads(self, policy: str, seed: int, rms: float) -> float:
        """
        Return a divergence in spreads of the live policy; NaN for a deterministic policy (seed 0)
        and for an unknown spread or one of 0.
        """
        spread = self.of(policy)
        return rms / spread if seed and spread > 0 else nan
