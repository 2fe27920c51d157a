# SPDX-License-Identifier: Apache-2.0
"""
Inference times of one policy, of which the slowest are measured again. One thread.

A machine that does something else makes single requests slow, and those decide a p99. A request
that is slow because of what it holds is slow again; so the smallest time of each counts. How often
a policy is slow while it serves is what the guards of a trial watch.
"""

from __future__ import annotations

from collections.abc import Callable
import heapq
import math
from typing import Any, NamedTuple

import numpy as np

PERCENTILE = 99
# slowest requests that are kept to be measured again, and how often each is
KEPT, REPETITIONS = 100, 3


class _Slow(NamedTuple):
    """A request; they are ordered by their time, and of two with the same the later is less."""

    latency_ms: float
    minus_number: int
    request: bytes
    info: dict[str, Any]


Measure = Callable[[bytes, dict[str, Any]], float]


class Latencies:
    """See the module; it keeps the slowest requests until `settle`."""

    def __init__(self) -> None:
        self.values_ms: list[float] = []
        self._slowest: list[_Slow] = []

    def add(self, latency_ms: float, request: bytes, info: dict[str, Any]) -> None:
        """Add the time of a request."""
        slow = _Slow(latency_ms, -len(self.values_ms), request, info)
        self.values_ms.append(latency_ms)
        if len(self._slowest) < KEPT:
            heapq.heappush(self._slowest, slow)
        else:
            heapq.heappushpop(self._slowest, slow)

    def settle(self, measure: Measure) -> int:
        """
        Measure the requests again that decide the p99, until no other one decides it; return how
        many. `measure` returns the time of a request [ms], infinite for one that fails.
        """
        kept = {-slow.minus_number: slow for slow in self._slowest}
        settled = 0
        while numbers := [number for number in self._deciding() if number in kept]:
            for number in numbers:
                slow = kept.pop(number)
                again_ms = (measure(slow.request, slow.info) for _ in range(REPETITIONS))
                self.values_ms[number] = min(self.values_ms[number], *again_ms)
                settled += 1
        self._slowest.clear()
        return settled

    def _deciding(self) -> list[int]:
        """Return the numbers of the requests from the p99 on."""
        count = len(self.values_ms)
        slower = count - math.floor((count - 1) * PERCENTILE / 100) if count else 0
        return heapq.nlargest(slower, range(count), key=self.values_ms.__getitem__)

    @property
    def p99_ms(self) -> float:
        """NaN without a request."""
        return float(np.percentile(self.values_ms, PERCENTILE)) if self.values_ms else math.nan
