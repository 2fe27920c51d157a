# SPDX-License-Identifier: Apache-2.0
"""Count dropped requests, replies and sessions by reason; any thread."""

from __future__ import annotations

from collections import Counter
import threading


class DropCounters:
    """Counts by reason. `add` is locked: concurrent calls must not lose a count."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, reason: str) -> None:
        with self._lock:
            self._counts[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return the counts since the start."""
        with self._lock:
            return dict(self._counts)
