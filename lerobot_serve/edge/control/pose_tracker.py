# SPDX-License-Identifier: Apache-2.0
"""
Tracks the measured pose: start position, pose to hold, and gaps in the measurement.

A robot without measurement for `max_unmeasured_ns` is lost: it may have been switched off and
moved. Motion resumes when it is at rest and enough new samples agree, from the position they
measure. The tick thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.result import LastCommand
from lerobot_serve.cage.start_position import StartPosition
from lerobot_serve.edge.control.manual_move import ManualMoveDetector
from lerobot_serve.edge.inputs.state_reader import RobotState


class PoseTracker:
    """Updated by the tick thread in each step."""

    def __init__(
        self, start: StartPosition, holding: ManualMoveDetector, max_unmeasured_ns: int
    ) -> None:
        self._start, self._holding, self._max_unmeasured_ns = start, holding, max_unmeasured_ns
        self._measured_ns: int | None = None
        # measured and commanded position before the loss
        self._before_loss: tuple[Float64Array, Float64Array] | None = None
        self._is_measured = self._is_lost = self._is_found = False

    def update(
        self,
        sensed: RobotState,
        now_ns: int,
        last: LastCommand | None,
        *,
        plays: bool,
        moves: bool,
    ) -> None:
        """
        Process the state of this step. `last`: the previous command; `plays`: a policy's action
        was executed, so no start is needed; `moves`: a joint was commanded to move.
        """
        measured = sensed.measured
        is_measured = measured is not None and bool(np.isfinite(measured).all())
        self._is_measured = is_measured
        self._is_lost |= not is_measured and bool(self.unmeasured_reason(now_ns))
        if plays and last and not self._is_lost:
            self._start.reset()
        else:
            self._start.add_sample(measured, sensed.arrived_ns)
        has_agreed = is_measured and not moves and self._start.agreed is not None
        self._is_found = self._is_lost and has_agreed
        self._is_lost &= not self._is_found
        if measured is not None and is_measured and not self._is_lost:
            self._measured_ns = now_ns
            if not self._is_found:
                self._before_loss = None if last is None else (measured, last.position)

    def start_blocked_by(self) -> str:
        """Return why motion may not start; empty if it may."""
        return self._start.blocked_reason()

    def start_command(self) -> LastCommand | None:
        """
        Return the start of a first command, None while motion may not start: far outside its
        limits the sensor is wrong, and a hold would drive the robot there.
        """
        return None if self.start_blocked_by() else self._start.start_command()

    def unmeasured_reason(self, now_ns: int) -> str:
        """Return why the robot must hold for lack of measurements; empty if it may move."""
        if self._measured_ns is not None and now_ns - self._measured_ns <= self._max_unmeasured_ns:
            return ''
        if self._is_measured:
            return 'state was missing; motion resumes at rest after consistent samples'
        return 'state is missing or stale'

    def was_moved(self, last: LastCommand | None, *, holds: bool) -> bool:
        """Return whether the robot was moved by hand while it held or was lost."""
        was_moved = self._is_found and self._was_moved_while_lost(last)
        if holds and last is not None:
            was_moved |= self._holding.was_moved(last.position, self._start.agreed)
        if was_moved or not holds:
            self._holding.reset()
        return was_moved

    def _was_moved_while_lost(self, last: LastCommand | None) -> bool:
        agreed = self._start.agreed
        if last is None or agreed is None or self._before_loss is None:
            return False
        measured, commanded = self._before_loss
        before = abs(measured - commanded)
        return self._holding.is_further(abs(agreed - last.position), before)

    def measured_pose(self, commanded: Float64Array) -> Float64Array:
        """Return the measured pose, or the commanded one if unknown."""
        return commanded if self._start.agreed is None else self._start.agreed
