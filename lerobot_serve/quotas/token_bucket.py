# SPDX-License-Identifier: Apache-2.0
"""
A token bucket that may go into debt. Pure; not locked.

It admits while something is left, and then takes what was used, which is known later for the
inference of a request. Over any time t it admits at most burst + rate x t and one request more.
"""

from __future__ import annotations

import math


class TokenBucket:
    """`rate` tokens arrive each second, up to `capacity`. Full at `now_ns`."""

    __slots__ = ('_balance', '_capacity', '_rate', '_updated_ns')

    def __init__(self, rate: float, capacity: float, now_ns: int) -> None:
        self._rate, self._capacity = rate, capacity
        self._balance, self._updated_ns = capacity, now_ns

    def wait_s(self, now_ns: int) -> float:
        """Return the time until something is left; 0 when there is."""
        self._refill(now_ns)
        if self._balance > 0:
            return 0.0
        # rounding may leave nothing after exactly this time
        return math.nextafter(-self._balance / self._rate + 1e-9, math.inf)

    def take(self, tokens: float, now_ns: int) -> None:
        """Take tokens, also into debt."""
        self._refill(now_ns)
        self._balance -= tokens

    def _refill(self, now_ns: int) -> None:
        # threads may bring times in another order
        passed_ns = max(0, now_ns - self._updated_ns)
        self._balance = min(self._capacity, self._balance + self._rate * passed_ns / 1e9)
        self._updated_ns += passed_ns
