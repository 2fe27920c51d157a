# SPDX-License-Identifier: Apache-2.0
"""
Quantiles of many values in little memory: a histogram whose bins grow with the value.

A quantile is within 1 % of the exact one. Plain; one thread.
"""

from __future__ import annotations

from math import ceil, floor, log

ERROR = 0.01
GROWTH = (1 + ERROR) / (1 - ERROR)
PER_LOG = 1 / log(GROWTH)
# all values in ms or s are inside; at most 2073 bins
SMALLEST, LARGEST = 1e-6, 1e12
PARTS = {'p50': 0.5, 'p95': 0.95, 'p99': 0.99}
_ZERO = ceil(log(SMALLEST) * PER_LOG) - 1


class QuantileSketch:
    """`count`, `total`, `low` and `high` are exact. Values below SMALLEST count as 0."""

    __slots__ = ('_bins', 'count', 'high', 'low', 'total')

    def __init__(self) -> None:
        self._bins: dict[int, int] = {}
        self.count, self.total = 0, 0.0
        self.low = self.high = 0.0

    def add(self, value: float) -> None:
        """Count a value; a negative one as 0."""
        value = min(max(value, 0.0), LARGEST)
        if not self.count:
            self.low = self.high = value
        elif value < self.low:
            self.low = value
        elif value > self.high:
            self.high = value
        self.count += 1
        self.total += value
        index = ceil(log(value) * PER_LOG) if value > SMALLEST else _ZERO
        self._bins[index] = self._bins.get(index, 0) + 1

    def merge(self, other: QuantileSketch) -> None:
        """Add the counts of another sketch."""
        if not other.count:
            return
        self.low = min(self.low, other.low) if self.count else other.low
        self.high = max(self.high, other.high)
        self.count += other.count
        self.total += other.total
        for index, count in other._bins.items():
            self._bins[index] = self._bins.get(index, 0) + count

    def quantile(self, part: float) -> float | None:
        """Return the quantile `part` (0 to 1), None without values."""
        if not self.count:
            return None
        left = floor(part * (self.count - 1))
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left < 0:
                middle = 0.0 if index == _ZERO else 2 * GROWTH**index / (GROWTH + 1)
                return min(max(middle, self.low), self.high)
        raise AssertionError('the bins hold all counted values')

    def spread(self) -> dict[str, float | int]:
        """Return n, min, p50, p95, p99 and max; only n without values."""
        summary: dict[str, float | int] = {'n': self.count}
        if not self.count:
            return summary
        summary['min'] = self.low
        for name, part in PARTS.items():
            summary[name] = self.quantile(part) or 0.0
        summary['max'] = self.high
        return summary
