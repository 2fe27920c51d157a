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

from lerobot_serve.edge.queue.action_queue import QueuedAction
from lerobot_serve.wire.execution_report import ExecutedRun, rows_limit


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedRow:
    """A row, what was commanded for it, and whether the step before it played none."""

    planned: QueuedAction
    command: np.ndarray
    after_pause: bool


class ExecutedActionLog:
    """Remembers the last rows that were commanded, and counts those that there was no room for."""

    def __init__(self, columns: int) -> None:
        self._limit = rows_limit(columns)
        self._over: deque[ExecutedRow] = deque()
        self._playing: ExecutedRow | None = None
        self._was_paused = False
        self._oldest_age_ns = 0
        self._lock = threading.Lock()
        self.dropped_rows = 0

    # tick thread

    def note(self, planned: QueuedAction, command: np.ndarray | None, age_ns: int) -> None:
        """A row was played; `command` is what was sent of it, None when nothing was."""
        with self._lock:
            self._oldest_age_ns = max(self._oldest_age_ns, age_ns)
            if command is None:
                return
            playing = self._playing
            if playing and playing.planned is planned:
                self._playing = ExecutedRow(planned, command, playing.after_pause)
                return
            if playing:
                self._end()
            self._playing = ExecutedRow(planned, command, self._was_paused)
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

    def take(self) -> tuple[tuple[ExecutedRun, ...], int]:
        """Return what is over since the last time, and the age of the oldest row played [ns]."""
        with self._lock:
            over, self._over = self._over, deque()
            oldest_age_ns, self._oldest_age_ns = self._oldest_age_ns, 0
        return group_runs(over), oldest_age_ns


def group_runs(rows: deque[ExecutedRow]) -> tuple[ExecutedRun, ...]:
    """Return rows of one chunk that were played one after the other as one run."""
    stretches: list[list[ExecutedRow]] = []
    for row in rows:
        if stretches and _follows(row, stretches[-1][-1]):
            stretches[-1].append(row)
        else:
            stretches.append([row])
    return tuple(map(_run, stretches))


def _run(stretch: list[ExecutedRow]) -> ExecutedRun:
    first = stretch[0].planned
    rows = np.array([row.command for row in stretch], np.float32)
    source = first.source
    return ExecutedRun(source.seq, source.session_epoch, first.row, rows, stretch[0].after_pause)


def _follows(row: ExecutedRow, before: ExecutedRow) -> bool:
    ours, theirs = row.planned, before.planned
    is_next = ours.source is theirs.source and ours.row == theirs.row + 1
    return is_next and not row.after_pause
