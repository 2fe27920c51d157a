# SPDX-License-Identifier: Apache-2.0
"""
The spread of a policy: the divergence between two of its draws for the same observation.

Divergences are reported in multiples of it. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from math import nan, sqrt

WINDOW_DRAWS = 200
POLICIES_LIMIT = 32


class PolicySpread:
    """The last WINDOW_DRAWS draws of up to POLICIES_LIMIT policies."""

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
