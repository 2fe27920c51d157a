# SPDX-License-Identifier: Apache-2.0
"""Recent reply latency. No ROS; called under RoutingTable.lock."""

from __future__ import annotations

from collections import deque
from math import nan

# minimum number of samples for a percentile
MIN_SAMPLES = 20
WINDOW_SAMPLES = 256
# the samples are sorted once in so many replies
REFRESH_SAMPLES = 16


class RecentLatency:
    """Percentiles of the last WINDOW_SAMPLES replies, up to REFRESH_SAMPLES replies old."""

    def __init__(self) -> None:
        self._recent_ms: deque[float] = deque(maxlen=WINDOW_SAMPLES)
        self._sorted_ms: list[float] = []
        self.count = 0

    def add(self, latency_ms: float) -> None:
        self._recent_ms.append(latency_ms)
        self.count += 1
        if self.count % REFRESH_SAMPLES == 0 or self.count == MIN_SAMPLES:
            self._sorted_ms = sorted(self._recent_ms)

    def percentile_ms(self, percent: float) -> float:
        """Return a percentile; nan with fewer than MIN_SAMPLES replies."""
        if len(self._sorted_ms) < MIN_SAMPLES:
            return nan
        last = len(self._sorted_ms) - 1
        return self._sorted_ms[round(last * percent / 100)]
