# SPDX-License-Identifier: Apache-2.0
"""
The fallback ladder: commands of the robot without fresh actions, within the granted motion.

The first step without an action starts the first rung, and so does a new episode or a hand-back;
each rung hands over to the next at its deadline. Execution resumes when `resume_rows` are queued,
or the queue was not empty for as many steps, so that single rows do not make the robot twitch and
a shorter chunk does not wait forever. A teardown has its own rungs.

The rung stop_service requests the stop once; `stop_reason` then stays set until `clear_stop`. Tick
thread; it reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import LastCommand
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    ControlAuthority,
    MotionGrant,
    TeardownState,
)
from lerobot_serve.edge.control.rungs import check_order, Ramp, ramp_s, Rung, RungKind
from lerobot_serve.edge.robot.description import RobotDescription

# the queue was cleared: the episode is over
CAUSE_CLEARED = 'cleared'
CAUSE_QUEUE_EMPTY = 'nothing_to_play'
CAUSE_TOO_FEW_ROWS = 'too_few_rows_to_resume'


@dataclass(frozen=True, slots=True, eq=False)
class LadderDecision:
    """
    The target of one step; None: no command.

    `reason` is the rung and its cause, as words with underscores. `call_stop_service` is true once
    per fallback: call the stop service now.
    """

    kind: RungKind
    wanted: Float64Array | None
    reason: str
    call_stop_service: bool = False


class Ladder:
    """
    Holds the current rung. `teardown` has no rungs where the teardown is a hold;
    `has_stop_service`: a stop service is configured. `stopped_by` is why it was called before the
    start, `on_stop` is called with the reason before it is called. Raises ParameterError for a
    wrong order of rungs.
    """

    def __init__(
        self,
        rungs: tuple[Rung, ...],
        robot: RobotDescription,
        *,
        step_s: float,
        resume_rows: int,
        teardown: tuple[Rung, ...] = (),
        has_stop_service: bool = True,
        stopped_by: str = '',
        on_stop: Callable[[str], object] = lambda _: None,
    ) -> None:
        for each in (rungs, teardown) if teardown else (rungs,):
            check_order(each)
        self._rungs = {ControlAuthority.LADDER: rungs, ControlAuthority.TEARDOWN: teardown}
        self.ramp_s = ramp_s(rungs, robot, step_s)
        self._ramp = Ramp(robot.actions, step_s=step_s, stop_s=self.ramp_s)
        self._pose = None if robot.safe_pose is None else np.array(robot.safe_pose)
        # pose at the start of the episode; None while unknown
        self.initial_pose: Float64Array | None = None
        self._resume_rows, self._calls_stop = resume_rows, has_stop_service
        self._authority = ControlAuthority.LADDER
        self._played = self._falling = self._is_teardown_finished = False
        # why the stop service was called; empty if it was not, or a reset cleared it
        self.stop_reason, self._on_stop = stopped_by, on_stop
        self._index = 0
        self._empty_cause = CAUSE_QUEUE_EMPTY
        self._entered_ns: int | None = None
        self._steps_with_rows = 0

    @property
    def stopped(self) -> bool:
        """Whether the stop service was called and no reset cleared it."""
        return bool(self.stop_reason)

    @property
    def teardown(self) -> TeardownState:
        """The state of the teardown."""
        if not self._rungs[ControlAuthority.TEARDOWN]:
            return TeardownState.HOLD
        return TeardownState.FINISHED if self._is_teardown_finished else TeardownState.PENDING

    @property
    def supply(self) -> ActionSupply:
        """The supply of a step without an action."""
        return ActionSupply.EMPTY if self._played else ActionSupply.NEVER

    def plays(self, rows_left: int) -> bool:
        """
        Return whether to execute an action with this many fresh rows queued. Call before taking
        one: a row that is taken and not executed is lost.
        """
        enough = max(rows_left, self._steps_with_rows) >= self._resume_rows
        return rows_left > 0 and (enough or not self._falling)

    def step(
        self,
        grant: MotionGrant,
        planned: Float64Array | None,
        rows_left: int,
        now_ns: int,
        last: LastCommand | None,
        *,
        cleared: bool = False,
    ) -> LadderDecision:
        """
        Return the target. `rows_left` counts the fresh queued rows including `planned`, the first;
        `cleared`: the queue was cleared since the previous step.
        """
        authority, allowed, cause = grant
        if allowed is AllowedMotion.PLAY and planned is not None:
            return self._play(authority, planned)
        self._restart_on_change(authority)
        if cleared:
            # another episode, or a hand-back: the rungs of before are none of it
            self._entered_ns = None
        if cleared and not self._falling:
            self._empty_cause = CAUSE_CLEARED
        self._steps_with_rows = self._steps_with_rows + 1 if rows_left > 0 else 0
        self._falling |= self._played
        if cause == CAUSE_QUEUE_EMPTY and self._played:
            cause = CAUSE_TOO_FEW_ROWS if rows_left > 0 else self._empty_cause
        if last is None and self._played and self._has_rungs(authority):
            # after a silence the rungs pass without a command, and the stop is called when due
            return self._run_rung(now_ns, None, cause)
        if allowed is AllowedMotion.NONE or last is None:
            return _decision(self._reported_rung(grant), None, cause)
        if allowed in (AllowedMotion.FALL_BACK, AllowedMotion.TEARDOWN):
            return self._run_rung(now_ns, last, cause)
        kind = (
            RungKind.HOLD
            if allowed in (AllowedMotion.HOLD, AllowedMotion.INTERLOCK)
            else RungKind.RAMP
        )
        return _decision(kind, self._wanted(kind, last), cause)

    def reset_teardown(self) -> None:
        """Reset the teardown; the next one starts at its first rung."""
        self._is_teardown_finished = False

    def clear_stop(self) -> None:
        """Clear the stop by service."""
        self.stop_reason = ''

    def reset(self) -> None:
        """
        Reset after silence: nothing is commanded until an action is executed, which starts at
        once.
        """
        self._played = self._falling = False
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()

    def _has_rungs(self, authority: ControlAuthority) -> bool:
        is_over = authority is ControlAuthority.TEARDOWN and self._is_teardown_finished
        return bool(self._rungs.get(authority)) and not is_over

    def _restart_on_change(self, authority: ControlAuthority) -> None:
        """Restart at the first rung if the authority changed."""
        if authority is not self._authority:
            self._authority, self._entered_ns = authority, None

    def _play(self, authority: ControlAuthority, planned: Float64Array) -> LadderDecision:
        self._authority = authority
        self._played, self._falling, self._empty_cause = True, False, CAUSE_QUEUE_EMPTY
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()
        is_person = authority is ControlAuthority.PERSON
        kind = RungKind.PERSON if is_person else RungKind.POLICY
        return LadderDecision(kind, planned, kind.name.lower())

    def _reported_rung(self, grant: MotionGrant) -> RungKind:
        """Return the rung to report while nothing is commanded."""
        if self.stopped:
            return RungKind.STOP_SERVICE
        return (
            RungKind.POLICY if grant.authority is ControlAuthority.LADDER else RungKind.NO_COMMAND
        )

    def _run_rung(self, now_ns: int, last: LastCommand | None, cause: str) -> LadderDecision:
        kind = self._rung(self._rungs[self._authority], now_ns)
        if kind is not RungKind.STOP_SERVICE:
            if last is None:
                return _decision(RungKind.NO_COMMAND, None, cause)
            return _decision(kind, self._wanted(kind, last), cause)
        self._is_teardown_finished = self._authority is ControlAuthority.TEARDOWN
        if self._calls_stop:
            # before any thread sees the stop: it may clear what it sees
            reason = cause.replace('_', ' ')
            self._on_stop(reason)
            self.stop_reason = reason
        # moving joints slow down to rest; without a command velocities would continue
        kind = kind if self._calls_stop else RungKind.NO_COMMAND
        wanted = None if last is None else self._ramp.stop(last)
        return _decision(kind, wanted, cause, call_stop_service=self._calls_stop)

    def _rung(self, rungs: tuple[Rung, ...], now_ns: int) -> RungKind:
        """Return the current rung; passed deadlines are final."""
        if self._entered_ns is None:
            self._index, self._entered_ns = 0, now_ns
        while True:
            rung = rungs[self._index]
            if rung.for_s is None or now_ns - self._entered_ns < rung.for_s * 1e9:
                return rung.kind
            self._entered_ns += int(rung.for_s * 1e9)
            self._index += 1

    def _wanted(self, kind: RungKind, last: LastCommand) -> Float64Array:
        if kind is RungKind.RAMP:
            return self._ramp.stop(last)
        if kind is RungKind.SAFE_POSE and self._pose is not None:
            return self._ramp.approach(last, self._pose)
        if kind is RungKind.INITIAL_POSE and self.initial_pose is not None:
            return self._ramp.approach(last, self.initial_pose)
        if kind is RungKind.REPEAT_LAST:
            return last.position.copy()
        if kind is RungKind.ZERO:
            return np.zeros(len(last.position))
        return self._ramp.hold(last)


def _decision(
    kind: RungKind, wanted: Float64Array | None, cause: str, *, call_stop_service: bool = False
) -> LadderDecision:
    return LadderDecision(kind, wanted, f'{kind.name.lower()}: {cause}', call_stop_service)
