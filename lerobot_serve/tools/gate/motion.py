# SPDX-License-Identifier: Apache-2.0
"""
What one policy does with the recorded requests: failures, cage, velocities, latency. One thread.

A machine that does something else makes single requests slow, and those decide a p99. A request
that is slow because of what it holds is slow again; so the slowest are measured again, and the
smallest time of each counts. How often a policy is slow while it serves is what the guards of a
trial watch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import heapq
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.shadow.remote_cage import RemoteCage, would_trip

PERCENTILE = 99
# slowest requests that are kept to be measured again, and how often each is
KEPT, REPETITIONS = 100, 3
Measure = Callable[[bytes, dict[str, Any]], float]
Values = NDArray[np.float64]
# velocities kept of each action; beyond it every second one is dropped
VELOCITIES_LIMIT = 200_000
QUANTILES: Values = (np.arange(1000, dtype=np.float64) + 0.5) / 1000
# a spread below this share of the largest one of any action is rounding, not motion
LEAST_SPREAD_SHARE = 1e-3
SMALLEST_SPREAD = 1e-30
NO_ROWS: Float32Array = np.zeros((0, 0), np.float32)


class _Slow(NamedTuple):
    """A request; they are ordered by their time, and of two with the same the later is less."""

    latency_ms: float
    minus_number: int
    request: bytes
    info: dict[str, Any]


class Latencies:
    """Inference times; it keeps the slowest requests until `settle`."""

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


class Velocities:
    """The differences of successive rows, thinned evenly when they are too many."""

    def __init__(self) -> None:
        self._parts: list[Values] = []
        # rows are counted across chunks; kept are those whose number the stride divides
        self._kept, self._seen, self._stride = 0, 0, 1

    def add(self, rows: Float32Array) -> None:
        """Add the differences of the rows of a chunk."""
        steps = np.diff(rows.astype(np.float64), axis=0)
        kept = steps[-self._seen % self._stride :: self._stride]
        self._seen += len(steps)
        if len(kept):
            self._parts.append(kept)
            self._kept += len(kept)
        if self._kept > VELOCITIES_LIMIT:
            self._parts = [self.values[::2]]
            self._kept, self._stride = len(self._parts[0]), 2 * self._stride

    @property
    def values(self) -> Values:
        """Differences x actions."""
        return np.concatenate(self._parts) if self._parts else np.zeros((0, 0))


def velocity_distances(parent: Velocities, candidate: Velocities) -> Values:
    """
    Return, for each action, the Wasserstein distance of both distributions of velocity in standard
    deviations of the parent's. Empty without data.
    """
    old, new = parent.values, candidate.values
    if not (len(old) and len(new)) or old.shape[1] != new.shape[1]:
        return np.zeros(0)
    apart = np.abs(np.quantile(old, QUANTILES, axis=0) - np.quantile(new, QUANTILES, axis=0))
    spreads = old.std(axis=0)
    least = max(LEAST_SPREAD_SHARE * float(spreads.max()), SMALLEST_SPREAD)
    distances: Values = apart.mean(axis=0) / np.maximum(spreads, least)
    return distances


@dataclass(slots=True)
class PolicyMotion:
    """See the module."""

    chunks: int = 0
    # replies with another status than OK, and the first text
    failed: int = 0
    first_failure: str = ''
    # chunks whose robot has known limits, and those that its cage would change
    caged: int = 0
    changed: int = 0
    velocities: Velocities = field(default_factory=Velocities)
    latencies: Latencies = field(default_factory=Latencies)

    def add(self, chunk: Chunk, cage: RemoteCage | None, before: Float32Array = NO_ROWS) -> None:
        """
        Add a reply; `cage` has the limits of its robot, if they are known, and `before` the
        position from which the robot moves to the first row.
        """
        self.chunks += 1
        if chunk.status != Status.OK:
            self.failed += 1
            self.first_failure = self.first_failure or chunk.status_text
            return
        self.velocities.add(chunk.robot)
        if cage and len(cage.limits.names) == chunk.robot.shape[1]:
            self.caged += 1
            self.changed += would_trip(cage, before, chunk.robot, [])

    @property
    def changed_share(self) -> float:
        return self.changed / self.caged if self.caged else 0.0


@dataclass(slots=True)
class SharedMotion:
    """Inner product and energies of the motions of both policies; they add up over chunks."""

    chunks: int = 0
    product: float = 0.0
    parent_energy: float = 0.0
    candidate_energy: float = 0.0

    def add(self, other: SharedMotion) -> None:
        """Add further motions."""
        self.chunks += other.chunks
        self.product += other.product
        self.parent_energy += other.parent_energy
        self.candidate_energy += other.candidate_energy

    @property
    def similarity(self) -> float:
        """The cosine of both motions, in which large ones count more; NaN if nothing moves."""
        if not self.parent_energy and not self.candidate_energy:
            return math.nan
        norm = math.sqrt(self.parent_energy) * math.sqrt(self.candidate_energy)
        return self.product / norm if norm else 0.0


def shared_motion(parent: Float32Array, candidate: Float32Array) -> SharedMotion | None:
    """
    Return the motion over the common rows, from the parent's first row; None without common rows
    or for other actions.
    """
    rows = min(len(parent), len(candidate))
    if not rows or parent.shape[1] != candidate.shape[1]:
        return None
    begin = parent[:1].astype(np.float64)
    old, new = (each[:rows].astype(np.float64) - begin for each in (parent, candidate))
    return SharedMotion(1, float((old * new).sum()), float((old**2).sum()), float((new**2).sum()))
