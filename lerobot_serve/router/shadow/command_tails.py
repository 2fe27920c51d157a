# SPDX-License-Identifier: Apache-2.0
"""
Track the last commands of each robot before a run of executed rows.

They are unknown if the commands before the run were not rows of a policy, did not fit into the
report, or were in a lost report. Owned by the thread `shadow`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.data_path.execution_report import ExecutedRun, ExecutionReport
from lerobot_serve.contract.data_path.header import Envelope
from lerobot_serve.router.shadow.sample_joiner import NO_ROWS

# two commands give position and velocity
ROWS_KEPT = 2


@dataclass(frozen=True, slots=True, eq=False)
class _LastReport:
    """The last report of a robot, and its last commanded rows."""

    session_epoch: int
    seq: int
    dropped_rows: int
    rows: Float32Array

    def is_before(self, start: Envelope, executed: ExecutionReport) -> bool:
        """Return whether `executed` directly follows this report."""
        header = start.header
        is_next = (header.session_epoch, header.seq) == (self.session_epoch, self.seq + 1)
        return is_next and executed.dropped_rows == self.dropped_rows


class CommandTails:
    """The last rows of up to `capacity` robots; beyond it the least recent one is removed."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._last_reports: OrderedDict[str, _LastReport] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last_reports)

    def follow(
        self, start: Envelope, executed: ExecutionReport
    ) -> list[tuple[ExecutedRun, Float32Array]]:
        """Return each run with up to ROWS_KEPT rows commanded directly before it."""
        previous = self._last_reports.pop(start.client_id, None)
        rows = previous.rows if previous and previous.is_before(start, executed) else NO_ROWS
        found = []
        for run in executed.runs:
            before = NO_ROWS if run.after_pause else rows
            found.append((run, before))
            rows = _last(before, run.rows)
        header = start.header
        self._last_reports[start.client_id] = _LastReport(
            header.session_epoch, header.seq, executed.dropped_rows, rows
        )
        if len(self._last_reports) > self._capacity:
            self._last_reports.popitem(last=False)
        return found


def _last(before: Float32Array, rows: Float32Array) -> Float32Array:
    """Return a copy of the last rows, so that the message can be released."""
    if before.shape[1] == rows.shape[1] and len(rows) < ROWS_KEPT:
        rows = np.concatenate((before, rows))
    return rows[-ROWS_KEPT:].copy()
