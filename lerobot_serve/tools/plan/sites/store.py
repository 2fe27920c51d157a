# SPDX-License-Identifier: Apache-2.0
"""The shared store in virtual time: a queue of placements, which waits while it is away. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoreResult:
    """
    Counts of one run.

    placements    episodes that routers have placed
    written       placements that are in the store in the end
    busy_s        time in which it writes
    most_waiting  largest number of placements that wait, the one being written included
    caught_up_s   time from its return until no placement waits; None where it was never away
    """

    placements: int
    written: int
    busy_s: float
    most_waiting: int
    caught_up_s: float | None


class SimulatedStore:
    """
    Writes placements one after the other, `write_s` each; routers never wait for it. After each
    `begin` that returns a turn, the caller calls `end` with it `write_s` later.
    """

    def __init__(self, write_s: float) -> None:
        self.write_s = write_s
        self._placements = self._written = self._waiting = self._most_waiting = 0
        self._is_away = self._is_writing = False
        # a transaction that began before the store was lost writes nothing
        self._turn = 0
        self._busy_s = 0.0
        self._back_s: float | None = None
        self._caught_up_s: float | None = None

    def place(self) -> None:
        """Queue one placement."""
        self._placements += 1
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)

    def begin(self) -> int | None:
        """Begin a transaction and return its turn; None where none can begin."""
        if self._is_away or self._is_writing or not self._waiting:
            return None
        self._is_writing = True
        return self._turn

    def end(self, turn: int, now_s: float) -> None:
        """End the transaction of this turn."""
        if turn != self._turn:
            return
        self._is_writing = False
        self._waiting -= 1
        self._written += 1
        self._busy_s += self.write_s
        self._check_caught_up(now_s)

    def leave(self) -> None:
        """Be lost; the placement of a transaction under way waits again."""
        self._is_away, self._is_writing = True, False
        self._turn += 1

    def come_back(self, now_s: float) -> None:
        """Be there again."""
        self._is_away, self._back_s = False, now_s
        self._check_caught_up(now_s)

    def result(self) -> StoreResult:
        """Return the counts."""
        return StoreResult(
            self._placements, self._written, self._busy_s, self._most_waiting, self._caught_up_s
        )

    def _check_caught_up(self, now_s: float) -> None:
        if self._back_s is not None and self._caught_up_s is None and not self._waiting:
            self._caught_up_s = now_s - self._back_s
