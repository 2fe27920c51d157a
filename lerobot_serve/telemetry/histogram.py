"""Durations, counted in the buckets of a Prometheus histogram. Owned by whoever adds."""

from __future__ import annotations

from bisect import bisect_left

# of an answer [s]
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """How many durations were up to each bound; other threads may read."""

    def __init__(self, bounds_s: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(self._bounds_s, duration_s)] += 1
        self.sum_s += duration_s

    def cumulative(self) -> list[tuple[str, float]]:
        """Return bound and count of all up to it, as Prometheus has them."""
        total, rows = 0, []
        for bound, count in zip((*map(str, self._bounds_s), '+Inf'), self._counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
