# SPDX-License-Identifier: Apache-2.0
"""
Values over time, by name; above BINS bins the width of the bins doubles.

Plain; one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import floor
from typing import Generic, Protocol, Self, TypeVar

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
