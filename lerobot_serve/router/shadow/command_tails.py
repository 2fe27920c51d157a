"""
What each robot was commanded right before a run, as far as nothing is missing between.

Missing is what was not a row of a policy, what the robot had no room to tell, and what was told
with a request that never came. Owned by the shadow thread.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lerobot_serve.wire.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.wire.header import Envelope

# a command and the one before it: where the robot is and how fast
ROWS_KEPT = 2
UNKNOWN = np.zeros((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class _LastReport:
    """A robot's last report, and the last rows it was commanded."""

    session_epoch: int
    seq: int
    dropped_rows: int
    rows: np.ndarray

    def is_before(self, start: Envelope, executed: ExecutionReport) -> bool:
        """Tell whether nothing is missing between this report and that one."""
        header = start.header
        is_next = (header.session_epoch, header.seq) == (self.session_epoch, self.seq + 1)
        return is_next and executed.dropped_rows == self.dropped_rows


class CommandTails:
    """The last rows of up to `capacity` robots; the one unheard for longest is forgotten."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._told: OrderedDict[str, _LastReport] = OrderedDict()

    def __len__(self) -> int:
        return len(self._told)

    def follow(
        self, start: Envelope, executed: ExecutionReport
    ) -> list[tuple[ExecutedRun, np.ndarray]]:
        """Return each run with up to ROWS_KEPT rows commanded right before it, oldest first."""
        told = self._told.pop(start.client_id, None)
        rows = told.rows if told and told.is_before(start, executed) else UNKNOWN
        found = []
        for run in executed.runs:
            before = UNKNOWN if run.after_pause else rows
            found.append((run, before))
            rows = _last(before, run.rows)
        header = start.header
        self._told[start.client_id] = _LastReport(
            header.session_epoch, header.seq, executed.dropped_rows, rows
        )
        if len(self._told) > self._capacity:
            self._told.popitem(last=False)
        return found


def _last(before: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a copy of the last rows: what they are a part of is not to be kept."""
    if before.shape[1] == rows.shape[1] and len(rows) < ROWS_KEPT:
        rows = np.concatenate((before, rows))
    return rows[-ROWS_KEPT:].copy()
