# SPDX-License-Identifier: Apache-2.0
"""
Alarm for a policy whose actions are mostly clamped: each command is within limits, but the robot
does not execute the policy's motion.

It counts joint-steps (one per joint and step) over a window of executed steps. If at least half
were clamped, it raises an alarm. If at least half of the targets were outside the position limits,
a unit, zero or direction is wrong, and the cage must latch. Joints that are only slowed, as with a
low max_velocity on a first run, never latch. Plain, without a clock; the tick thread.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import ActionLimit, Motion

ALARM_SHARE = 0.5
# share of the range between the limits; a target at a limit is not outside
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class ClampFinding:
    """Result for the window; `latches`: the cage must latch."""

    text: str
    latches: bool


class ClampAlarm:
    """
    Evaluates each executed step. `current` is the alarm or None; any thread may read it.
    """

    def __init__(
        self, actions: tuple[ActionLimit, ...], *, window_steps: int, window_s: float
    ) -> None:
        """A window of 0 steps never raises an alarm."""
        moves = [action.motion is Motion.VELOCITY for action in actions]
        bounds = np.array([(action.low, action.high) for action in actions], float)
        low, high = bounds.reshape(-1, 2).T
        room = ROUNDING * (high - low)
        # a velocity limit is often far below the training data, on purpose
        self._low = np.where(moves, -np.inf, low - room)
        self._high = np.where(moves, np.inf, high + room)
        self._joints, self._window_s = len(actions), window_s
        # of each step: changed joints, joints with a target outside the limits
        self._steps: deque[tuple[int, int]] = deque(maxlen=window_steps)
        self._changed = self._outside = 0
        self.current: ClampFinding | None = None
        self._unreported: ClampFinding | None = None

    def record(self, wanted: Float64Array, command: Float64Array) -> ClampFinding | None:
        """Record an executed step; return an alarm when it starts, or starts to latch."""
        if not self._steps.maxlen:
            return None
        changed = int((wanted != command).sum())
        outside = int(((wanted < self._low) | (wanted > self._high)).sum())
        if len(self._steps) == self._steps.maxlen:
            before_changed, before_outside = self._steps[0]
            self._changed -= before_changed
            self._outside -= before_outside
        self._steps.append((changed, outside))
        self._changed += changed
        self._outside += outside
        return self._update_current()

    def reset(self) -> None:
        """Clear the window: a new episode, or an operator has reset the cage."""
        self._steps.clear()
        self._changed = self._outside = 0
        self.current = None

    def take_unreported(self) -> ClampFinding | None:
        """Return the newest alarm once, for the log; one reader thread."""
        alarm, self._unreported = self._unreported, None
        return alarm

    def _update_current(self) -> ClampFinding | None:
        before, self.current = self.current, self._evaluate()
        is_new = self.current and (before is None or self.current.latches > before.latches)
        if not is_new:
            return None
        self._unreported = self.current
        return self.current

    def _evaluate(self) -> ClampFinding | None:
        if len(self._steps) != self._steps.maxlen:
            return None
        joint_steps = self._joints * len(self._steps)
        over = f'of {joint_steps} joint-steps of the last {self._window_s:g} s'
        if self._outside >= ALARM_SHARE * joint_steps:
            return ClampFinding(
                f'{self._outside} {over} had targets outside the position limits: the unit, zero '
                'or direction of policy and robot differ; see units in docs/your_robot.md',
                latches=True,
            )
        if self._changed >= ALARM_SHARE * joint_steps:
            return ClampFinding(
                f'{self._changed} {over} were clamped: the robot does not execute the policy; '
                'compare its limits with the policy (lerobot-serve doctor)',
                latches=False,
            )
        return None
