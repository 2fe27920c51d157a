# SPDX-License-Identifier: Apache-2.0
"""
Log of executed rows for the execution report of the next request.

With interpolation a row has several commands; the last one counts, which is the row itself unless
the cage changed it. So a row is reported when the next one starts.

The tick thread records, the request thread takes. The lock is held for an append or a swap.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
import threading

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.data_path.execution_report import ExecutedRun, rows_limit
from lerobot_serve.edge.action_queue import QueuedAction


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedRow:
    """An executed row, its command, and whether it follows a step without a row."""

    planned: QueuedAction
    command: Float64Array
    after_pause: bool


class ExecutedActionLog:
    """Keeps the latest executed rows and counts those that did not fit."""

    def __init__(self, columns: int) -> None:
        self._limit = rows_limit(columns)
        self._finished: deque[ExecutedRow] = deque()
        self._current: ExecutedRow | None = None
        self._was_paused = False
        self._oldest_age_ns = 0
        self._lock = threading.Lock()
        self.dropped_rows = 0

    # tick thread

    def record(self, planned: QueuedAction, command: Float64Array | None, age_ns: int) -> None:
        """Record an executed row; `command` is what was sent, None for nothing."""
        with self._lock:
            self._oldest_age_ns = max(self._oldest_age_ns, age_ns)
            if command is None:
                return
            current = self._current
            if current and current.planned is planned:
                self._current = ExecutedRow(planned, command, current.after_pause)
                return
            if current:
                self._finish(current)
            self._current = ExecutedRow(planned, command, self._was_paused)
            self._was_paused = False

    def end_row(self) -> None:
        """Record a step without a row."""
        if current := self._current:
            with self._lock:
                self._finish(current)
        self._was_paused = True

    def _finish(self, current: ExecutedRow) -> None:
        self._finished.append(current)
        self._current = None
        if len(self._finished) > self._limit:
            self._finished.popleft()
            self.dropped_rows += 1

    # request thread

    def take_runs(self) -> tuple[tuple[ExecutedRun, ...], int]:
        """Return the rows finished since the last call, and the age of the oldest [ns]."""
        with self._lock:
            finished, self._finished = self._finished, deque()
            oldest_age_ns, self._oldest_age_ns = self._oldest_age_ns, 0
        return group_runs(finished), oldest_age_ns


def group_runs(rows: deque[ExecutedRow]) -> tuple[ExecutedRun, ...]:
    """Group consecutive rows of one chunk into runs."""
    groups: list[list[ExecutedRow]] = []
    for row in rows:
        if groups and _follows(row, groups[-1][-1]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return tuple(map(_run, groups))


def _run(group: list[ExecutedRow]) -> ExecutedRun:
    first = group[0].planned
    rows = np.array([row.command for row in group], np.float32)
    source = first.source
    return ExecutedRun(source.seq, source.session_epoch, first.row, rows, group[0].after_pause)


def _follows(row: ExecutedRow, before: ExecutedRow) -> bool:
    current, previous = row.planned, before.planned
    is_next = current.source is previous.source and current.row == previous.row + 1
    return is_next and not row.after_pause
