# SPDX-License-Identifier: Apache-2.0
"""Counters of what was dropped, by reason; any thread."""

from __future__ import annotations

from collections import Counter
import threading


class DropCounters:
    """Adding is locked: two threads that add at once must not lose one."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return what was counted since start."""
        with self._lock:
            return dict(self._counts)
