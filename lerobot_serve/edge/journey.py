"""
What the robot was made to do, row by row, until the next request tells it.

Between two rows of a policy there may be several commands; what counts as that of a row is the
last one while it was played, the row itself where nothing else interfered. So the row that is
being played is told when it is over.

The tick thread notes, the request thread takes. The lock is held for an append or a swap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

import numpy as np

from lerobot_serve.edge.queue.actions import Planned
from lerobot_serve.wire.executed import rows_limit, Run


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A row, what was commanded for it, and whether the step before it played none."""

    planned: Planned
    command: np.ndarray
    after_pause: bool


class Journey:
    """Remembers the last rows that were commanded, and counts those that there was no room for."""

    def __init__(self, columns: int) -> None:
        self._limit = rows_limit(columns)
        self._over: deque[Row] = deque()
        self._playing: Row | None = None
        self._was_paused = False
        self._oldest_age_ns = 0
        self._lock = threading.Lock()
        self.dropped_rows = 0

    # tick thread

    def note(self, planned: Planned, command: np.ndarray | None, age_ns: int) -> None:
        """A row was played; `command` is what was sent of it, None when nothing was."""
        with self._lock:
            self._oldest_age_ns = max(self._oldest_age_ns, age_ns)
            if command is None:
                return
            playing = self._playing
            if playing and playing.planned is planned:
                self._playing = Row(planned, command, playing.after_pause)
                return
            if playing:
                self._end()
            self._playing = Row(planned, command, self._was_paused)
            self._was_paused = False

    def pause(self) -> None:
        """No row is played in this step."""
        if self._playing:
            with self._lock:
                self._end()
        self._was_paused = True

    def _end(self) -> None:
        self._over.append(self._playing)
        self._playing = None
        if len(self._over) > self._limit:
            self._over.popleft()
            self.dropped_rows += 1

    # request thread

    def take(self) -> tuple[tuple[Run, ...], int]:
        """Return what is over since the last time, and the age of the oldest row played [ns]."""
        with self._lock:
            over, self._over = self._over, deque()
            oldest_age_ns, self._oldest_age_ns = self._oldest_age_ns, 0
        return runs(over), oldest_age_ns


def runs(rows: deque[Row]) -> tuple[Run, ...]:
    """Return rows of one chunk that were played one after the other as one run."""
    stretches: list[list[Row]] = []
    for row in rows:
        if stretches and _follows(row, stretches[-1][-1]):
            stretches[-1].append(row)
        else:
            stretches.append([row])
    return tuple(map(_run, stretches))


def _run(stretch: list[Row]) -> Run:
    first = stretch[0].planned
    rows = np.array([row.command for row in stretch], np.float32)
    source = first.source
    return Run(source.seq, source.session_epoch, first.row, rows, stretch[0].after_pause)


def _follows(row: Row, before: Row) -> bool:
    ours, theirs = row.planned, before.planned
    is_next = ours.source is theirs.source and ours.row == theirs.row + 1
    return is_next and not row.after_pause
