"""
The actions that are left to play.

A chunk replaces what is left, less the rows that the robot has lived through since the request, or
is appended to it. Nothing is ever blended. The tick thread takes, the requester merges; each call
is short and locked.
"""

from __future__ import annotations

from dataclasses import dataclass
import threading

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where the rows of a chunk come from."""

    seq: int
    session_epoch: int
    episode: int
    episode_id: str
    captured_ns: int
    slot: str
    policy: str


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """One action to play."""

    action: np.ndarray
    source: Source
    row: int


class ActionQueue:
    """See the module."""

    def __init__(self) -> None:
        self._rows: list[Planned] = []
        self._next = 0
        self._taken = 0
        self.rows_cleared = 0
        self._lock = threading.Lock()

    def take(self) -> Planned | None:
        """Return the next action and advance; None when nothing is left."""
        return self.take_fresh(None)[0]

    def take_fresh(self, oldest_ns: int | None) -> tuple[Planned | None, int]:
        """
        Return the next action whose observation was captured at `oldest_ns` or later, and how many
        older ones were dropped before it. Those count as never taken: the robot did not live them.
        """
        with self._lock:
            first = self._next
            while self._next < len(self._rows):
                planned = self._rows[self._next]
                self._next += 1
                if oldest_ns is None or planned.source.captured_ns >= oldest_ns:
                    self._taken += 1
                    return planned, self._next - 1 - first
            return None, self._next - first

    @property
    def rows_taken(self) -> int:
        """Rows taken since start; its difference over a request is what the robot has lived."""
        return self._taken

    @property
    def rows_left(self) -> int:
        with self._lock:
            return len(self._rows) - self._next

    def replace(
        self, chunk: np.ndarray, source: Source, *, delay_rows: int, rows_taken: int
    ) -> int:
        """
        Put the chunk in place of what is left; return the rows of it that were skipped.

        Skipped are the rows whose time has passed: the measured delay, but never more than the
        robot has really played since the request (`rows_taken` then against now), so that a first
        chunk starts with its first row.
        """
        with self._lock:
            skipped = max(0, min(delay_rows, self._taken - rows_taken, len(chunk)))
            self._rows = [Planned(chunk[i], source, i) for i in range(skipped, len(chunk))]
            self._next = 0
            return skipped

    def append(self, chunk: np.ndarray, source: Source) -> None:
        """Put the chunk behind what is left."""
        with self._lock:
            left = self._rows[self._next :]
            self._rows = left + [Planned(action, source, i) for i, action in enumerate(chunk)]
            self._next = 0

    def clear(self) -> int:
        """Forget what is left; return how many rows that were."""
        with self._lock:
            left = len(self._rows) - self._next
            self._rows, self._next = [], 0
            self.rows_cleared += left
            return left
