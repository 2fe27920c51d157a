# SPDX-License-Identifier: Apache-2.0
"""Compares counts and medians before and during the stall. Pure functions; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

# growth: at least this factor and this difference
GROWTH, GROWTH_MS = 2.0, 20.0
# upper bound of a value in ms
LARGEST = 1e12
# a single slow request during the stall suffices; the usual value needs several before
BEFORE_MIN, DURING_MIN = 3, 1


@dataclass(frozen=True, slots=True)
class MedianShift:
    """Counts and medians of values [ms] before and during the stall."""

    before_n: int
    before_p50: float | None
    during_n: int
    during_p50: float | None

    @property
    def is_known(self) -> bool:
        return self.before_n >= BEFORE_MIN and self.during_n >= DURING_MIN

    @property
    def has_grown(self) -> bool:
        """Whether both medians are known and the value grew."""
        if not self.is_known or self.before_p50 is None or self.during_p50 is None:
            return False
        return has_grown(self.before_p50, self.during_p50)

    def exceeds(self, bound_ms: float) -> bool:
        """Return whether both medians are known and none is below the bound."""
        if self.before_p50 is None or self.during_p50 is None:
            return False
        return min(self.before_p50, self.during_p50) >= bound_ms

    @property
    def text(self) -> str:
        """The count and p50 before and during."""
        before = _count_and_median(self.before_n, self.before_p50)
        during = _count_and_median(self.during_n, self.during_p50)
        return f'before {before}, during {during}'


def median_shift(before: Iterable[float | None], during: Iterable[float | None]) -> MedianShift:
    """Compare the known values before and during."""
    first, second = ([v for v in values if v is not None] for values in (before, during))
    return MedianShift(len(first), _middle(first), len(second), _middle(second))


def has_grown(before_ms: float, during_ms: float) -> bool:
    """Return whether the second median is far enough above the first."""
    return during_ms >= max(GROWTH * before_ms, before_ms + GROWTH_MS)


def _middle(values: list[float]) -> float | None:
    return min(median(values), LARGEST) if values else None


def _count_and_median(n: int, p50: float | None) -> str:
    return f'n {n}' if p50 is None else f'n {n} p50 {p50:.0f} ms'
