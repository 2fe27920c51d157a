# SPDX-License-Identifier: Apache-2.0
"""
The distance between two draws of the live policy for the same observation and rows.

It is the unit of a divergence in spreads: 1 is as far as the policy is from itself. Owned by the
shadow thread.
"""

from __future__ import annotations

from collections import deque, OrderedDict
from math import nan, sqrt

WINDOW_DRAWS = 200
POLICIES_LIMIT = 32


class PolicySpread:
    """The last WINDOW_DRAWS of each policy; of too many policies the oldest is forgotten."""

    def __init__(self) -> None:
        self._squares: OrderedDict[str, deque[float]] = OrderedDict()

    def add(self, policy: str, rms: float) -> None:
        """Note the root mean square of the difference of two draws; NaN is none."""
        if not 0 <= rms < float('inf'):
            return
        self._squares.setdefault(policy, deque(maxlen=WINDOW_DRAWS)).append(rms * rms)
        self._squares.move_to_end(policy)
        if len(self._squares) > POLICIES_LIMIT:
            self._squares.popitem(last=False)

    def of(self, policy: str) -> float:
        """Return the pooled root mean square; NaN before the first draw."""
        squares = self._squares.get(policy)
        return sqrt(sum(squares) / len(squares)) if squares else nan

    def in_spreads(self, policy: str, seed: int, rms: float) -> float:
        """
        Return a divergence in spreads of the policy whose chunk it is from; NaN when that draws
        nothing, as its seed of 0 says, or when its spread is not known or nothing.
        """
        spread = self.of(policy)
        return rms / spread if seed and spread > 0 else nan
