# SPDX-License-Identifier: Apache-2.0
"""
Gathers the points of curves, so that many become one call. One thread.

A call of rerun costs as much for a thousand points as for one, and a robot has hundreds of points
a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lerobot_serve.tools.rerun_view.mapping.entries import Path, Times

# points of all curves; some seconds of a robot, and about a megabyte
POINTS_LIMIT = 8192


class CurveKey(NamedTuple):
    """Points of one call have the same timelines."""

    path: Path
    clock: str
    has_control_step: bool


@dataclass(slots=True)
class CurveBatch:
    """Points of one curve in the order of arrival; columns of equal length."""

    time_ns: list[int] = field(default_factory=list)
    stamp_ns: list[int] = field(default_factory=list)
    control_steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


class CurveBatches:
    """All points that are not yet shown."""

    def __init__(self) -> None:
        self._batches: dict[CurveKey, CurveBatch] = {}
        self._points = 0

    @property
    def is_full(self) -> bool:
        return self._points >= POINTS_LIMIT

    def add(self, path: Path, value: float, times: Times) -> None:
        step = times.control_step
        key = CurveKey(path, times.clock, step is not None)
        batch = self._batches.setdefault(key, CurveBatch())
        batch.time_ns.append(times.time_ns)
        batch.values.append(value)
        if times.clock:
            batch.stamp_ns.append(times.stamp_ns)
        if step is not None:
            batch.control_steps.append(step)
        self._points += 1

    def take(self) -> Iterator[tuple[CurveKey, CurveBatch]]:
        """Yield and forget all batches."""
        batches, self._batches, self._points = self._batches, {}, 0
        yield from batches.items()
