# SPDX-License-Identifier: Apache-2.0
"""
Counts of one role, one slot and one policy, their quantiles, and values over time. Plain; one
thread.

A quantile is of a histogram whose bins grow with the value, within 1 % of the exact one, in little
memory. Above BINS bins of a time series the width of the bins doubles.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil, floor, log
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

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


# limit of names, since a trace may contain arbitrary ones
NAMES_LIMIT = 256
OTHER = 'other'
DURATIONS = ('round_trip_ms', 'inference_ms', 'queue_wait_ms')


class GroupKey(NamedTuple):
    """Role, slot and policy of a tally; slot and policy are empty if unknown."""

    role: str
    slot: str
    policy: str


@dataclass(slots=True)
class GroupStats:
    """
    Counts since the beginning of the traces.

    outcomes   of episodes that the policy did alone
    helped     outcomes of episodes in which a person commanded: they say nothing of the policy
    by_person  commands of a person who had taken over
    fallbacks  commands that were not played, by rung
    stalls     how often playing ended with nothing left
    trips      commands that the cage changed or stopped
    """

    episodes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    helped: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    durations: dict[str, QuantileSketch] = field(
        default_factory=lambda: {name: QuantileSketch() for name in DURATIONS}
    )
    actions: int = 0
    trips: int = 0
    by_person: int = 0
    fallbacks: Counter[str] = field(default_factory=Counter)
    stalls: int = 0
    oldest_age_s: float = 0.0
    drops: Counter[str] = field(default_factory=Counter)


def count_bounded(counter: Counter[str], name: str, by: int = 1) -> None:
    """Count a name; names above the limit count as OTHER."""
    if name not in counter and len(counter) >= NAMES_LIMIT:
        name = OTHER
    counter[name] += by


BINS = 120


class Mergeable(Protocol):
    """The value of a name in one bin."""

    def merge(self, other: Self, /) -> None: ...


Value = TypeVar('Value', bound=Mergeable)


@dataclass(slots=True)
class Proportion:
    """A count out of a total."""

    part: int = 0
    of: int = 0

    def add(self, is_one: bool) -> None:
        self.part += is_one
        self.of += 1

    def merge(self, other: Proportion) -> None:
        self.part += other.part
        self.of += other.of


class TimeSeries(Generic[Value]):
    """A time series; `make` returns an empty value."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self.width_s = 1
        self._bins: dict[int, dict[str, Value]] = {}
        self._first = self._last = 0

    def at(self, time_s: float, name: str) -> Value:
        """Return the value of a name at a time; the caller adds to it immediately."""
        index = floor(time_s / self.width_s)
        if not self._bins:
            self._first = self._last = index
        while max(index, self._last) - min(index, self._first) >= BINS:
            self._widen()
            index = floor(time_s / self.width_s)
        self._first, self._last = min(index, self._first), max(index, self._last)
        values = self._bins.setdefault(index, {})
        if name not in values:
            values[name] = self._make()
        return values[name]

    def names(self) -> list[str]:
        """Return the names in order."""
        return sorted({name for values in self._bins.values() for name in values})

    def of(self, name: str) -> Iterator[tuple[float, Value]]:
        """Yield the values of a name with the middle of their bins, in order."""
        for index in sorted(self._bins):
            if name in self._bins[index]:
                yield (index + 0.5) * self.width_s, self._bins[index][name]

    def _widen(self) -> None:
        narrow, self._bins = self._bins, {}
        self.width_s *= 2
        for index, values in narrow.items():
            wide = self._bins.setdefault(index // 2, {})
            for name, value in values.items():
                if name in wide:
                    wide[name].merge(value)
                else:
                    wide[name] = value
        self._first, self._last = self._first // 2, self._last // 2
