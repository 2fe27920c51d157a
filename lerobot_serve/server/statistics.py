"""
What a server counts and measures of itself. The worker and the executor write, anybody reads.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
import threading

import numpy as np

KEPT = 512
LOAD_WINDOW_NS = 10_000_000_000


@dataclass
class Statistics:
    """Counters since start, and the durations of the last requests."""

    requests: int = 0
    chunks: int = 0
    superseded: int = 0
    drops: Counter = field(default_factory=Counter)
    _inference_ms: deque = field(default_factory=lambda: deque(maxlen=KEPT))
    _wait_ms: deque = field(default_factory=lambda: deque(maxlen=KEPT))
    _busy: deque = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def drop(self, reason: str) -> None:
        with self._lock:
            self.drops[reason] += 1

    def arrived(self, *, superseded: bool) -> None:
        with self._lock:
            self.requests += 1
            self.superseded += superseded

    def served(self, *, begin_ns: int, end_ns: int, wait_ms: float, inference_ms: float) -> None:
        """Note one request that the worker was busy with."""
        with self._lock:
            self.chunks += 1
            self._inference_ms.append(inference_ms)
            self._wait_ms.append(wait_ms)
            self._busy.append((begin_ns, end_ns))

    def load(self, now_ns: int) -> float:
        """Return the share of the last seconds in which the worker was busy."""
        begin = now_ns - LOAD_WINDOW_NS
        with self._lock:
            while self._busy and self._busy[0][1] <= begin:
                self._busy.popleft()
            busy_ns = sum(end - max(start, begin) for start, end in self._busy)
        return busy_ns / LOAD_WINDOW_NS

    def percentile_ms(self, what: str, percent: float) -> float:
        """
        Return a percentile of the last 'inference' or 'wait' durations, 0 when there is none.
        """
        with self._lock:
            values = list(self._inference_ms if what == 'inference' else self._wait_ms)
        return float(np.percentile(values, percent)) if values else 0.0

    def drop_counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self.drops)
