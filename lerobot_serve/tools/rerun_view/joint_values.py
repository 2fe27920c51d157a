# SPDX-License-Identifier: Apache-2.0
"""
Gives the values of states and actions the names of their joints. One thread.

Messages have values without names; the names are in the call that opened the session. A recording
may have commands before that call, so values wait for their names, within a limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.tools.rerun_view.entries import (
    Count,
    Emit,
    JOINTS,
    Path,
    path_part,
    Scalar,
    Times,
)

LANES = 4


class PlanLanes:
    """
    Places the chunks of one robot on a plot. A curve has one value at an instant, so chunks that
    overlap need curves of their own: a chunk takes the first lane whose last one has ended.
    """

    def __init__(self) -> None:
        self._end_ns = [0] * LANES

    def take(self, begin_ns: int, end_ns: int) -> int | None:
        """Return the lane of a chunk of this period; None where all lanes have one."""
        for lane, taken_until_ns in enumerate(self._end_ns):
            if taken_until_ns < begin_ns:
                self._end_ns[lane] = end_ns
                return lane
        return None


JOINTS_LIMIT = 64
# rows that wait: ten seconds of a fast robot
WAITING_LIMIT = 1000
MEASURED, WANTED, COMMANDED = 'measured', 'wanted', 'commanded'


class _Row(NamedTuple):
    """Values of one instant."""

    series: str
    values: Float32Array
    times: Times


class JointValues:
    """The curves of the joints of one robot, below `robot`."""

    def __init__(self, robot: Path, emit: Emit, count: Count) -> None:
        self._robot, self._emit, self._count = robot, emit, count
        self._waiting: list[_Row] = []
        self._gave_up = False
        self.names: OpenSessionRequest | None = None

    def set_names(self, names: OpenSessionRequest) -> None:
        """Name values from now on, and those that wait."""
        self.names = names
        self.release()

    def add(self, series: str, values: Float32Array, times: Times) -> None:
        """Show one row of values, or keep it until its names are known."""
        if not values.size:
            return
        if self.names or self._gave_up:
            self._show(_Row(series, values, times))
            return
        # the values are a view of the whole message
        self._waiting.append(_Row(series, values.copy(), times))
        if len(self._waiting) >= WAITING_LIMIT:
            self.release()

    def release(self) -> None:
        """Show the rows that wait; without names the values are numbered."""
        self._gave_up = True
        waiting, self._waiting = self._waiting, []
        for row in waiting:
            self._show(row)

    def path(self, joint: str, *parts: str) -> Path:
        return (*self._robot, JOINTS, path_part(joint), *parts)

    def action_names(self, count: int) -> Iterable[str]:
        """Return the names of the first JOINTS_LIMIT of `count` actions."""
        return self._names(WANTED, count)

    def _show(self, row: _Row) -> None:
        values = row.values.reshape(-1)
        if values.size > JOINTS_LIMIT:
            self._count(f'values beyond the first {JOINTS_LIMIT}', int(values.size) - JOINTS_LIMIT)
        shown = np.asarray(values[:JOINTS_LIMIT], np.float64).tolist()
        for name, value in zip(self._names(row.series, values.size), shown, strict=True):
            self._emit(self.path(name, row.series), Scalar(value), row.times)

    def _names(self, series: str, count: int) -> Iterable[str]:
        names: tuple[str, ...] = ()
        if self.names:
            is_state = series == MEASURED
            names = self.names.state_names if is_state else self.names.action_names
        if len(names) != count:
            names = tuple(
                f'{"state" if series == MEASURED else "action"}_{i}' for i in range(count)
            )
        return names[:JOINTS_LIMIT]
