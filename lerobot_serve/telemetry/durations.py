# SPDX-License-Identifier: Apache-2.0
"""
Percentiles of a series of durations, and counts in the buckets of a Prometheus histogram. Pure;
one thread adds to a histogram.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

PERCENTILES = {'p50': 50, 'p95': 95, 'p99': 99}


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile, interpolated between the nearest values; None without values."""
    return float(np.percentile(np.asarray(values, float), percent)) if len(values) else None


def summarize(values_ms: Sequence[float]) -> dict[str, float]:
    """Return n, min, p50, p95, p99 and max; only n for an empty series."""
    if not len(values_ms):
        return {'n': 0}
    values = np.asarray(values_ms, float)
    percentiles = np.percentile(values, list(PERCENTILES.values()))
    figures = {
        'min': values.min(),
        **dict(zip(PERCENTILES, percentiles, strict=True)),
        'max': values.max(),
    }
    return {'n': len(values), **{name: round(float(v), 4) for name, v in figures.items()}}


# bucket bounds of a request latency [s]
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of durations per bucket and their sum; other threads may read."""

    def __init__(self, bounds_s: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(self._bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Return each bound with its cumulative count, as Prometheus expects them."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self._bounds_s), '+Inf'), self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
