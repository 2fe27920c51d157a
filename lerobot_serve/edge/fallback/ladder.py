"""
What the robot is made to do where no action is played: as `authority` allows it.

When there is nothing to play it goes rung after rung, by the clock: the first step without an
action begins the first rung; each rung hands over to the next at its deadline. Up: it is played
again when `resume_rows` are buffered or when there was something buffered for as many steps, so
that single rows do not make the robot twitch, nor a chunk that is shorter than that make it wait
for ever. A teardown has rungs of its own.

The rung stop_service asks once for the stop; `stopped` then holds until `clear_stop`, whatever else
happens. Tick thread; it reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_serve.cage.result import LastCommand
from lerobot_serve.edge.control.authority import (
    ActionSupply,
    AllowedMotion,
    ControlAuthority,
    MotionGrant,
    TeardownState,
)
from lerobot_serve.edge.fallback.ramp import Ramp
from lerobot_serve.edge.fallback.rungs import check_order, ramp_s, Rung, RungKind
from lerobot_serve.edge.robot.description import RobotDescription

# what was buffered was thrown away: the episode is over
CAUSE_CLEARED = 'cleared'
CAUSE_QUEUE_EMPTY = 'nothing_to_play'
CAUSE_TOO_FEW_ROWS = 'too_few_rows_to_resume'


@dataclass(frozen=True, slots=True, eq=False)
class LadderDecision:
    """
    What one step wants; None is to command nothing.

    `reason` is the rung and what led to it, as words with underscores. `call_stop_service` is true once
    in a fall: call the stop service now.
    """

    kind: RungKind
    wanted: np.ndarray | None
    reason: str
    call_stop_service: bool = False


class Ladder:
    """
    Owns where on the ladder the robot is. `teardown` has no rungs where a robot that is given up
    only holds; `has_stop_service` says that there is a stop service. Raises ParameterError for rungs in
    a wrong order.
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
    ) -> None:
        for each in (rungs, teardown) if teardown else (rungs,):
            check_order(each)
        self._rungs = {ControlAuthority.LADDER: rungs, ControlAuthority.TEARDOWN: teardown}
        self.ramp_s = ramp_s(rungs, robot, step_s)
        self._ramp = Ramp(robot.actions, step_s=step_s, stop_s=self.ramp_s)
        self._pose = None if robot.safe_pose is None else np.array(robot.safe_pose)
        # where the episode began; None until that is known
        self.initial_pose: np.ndarray | None = None
        self._resume_rows, self._calls_stop = resume_rows, has_stop_service
        self._commander = ControlAuthority.LADDER
        self._played = self._falling = self.stopped = self._is_teardown_finished = False
        self._index = 0
        self._dry = CAUSE_QUEUE_EMPTY
        self._entered_ns: int | None = None
        self._steps_with_rows = 0

    @property
    def teardown(self) -> TeardownState:
        """What a teardown would do now."""
        if not self._rungs[ControlAuthority.TEARDOWN]:
            return TeardownState.HOLD
        return TeardownState.FINISHED if self._is_teardown_finished else TeardownState.PENDING

    @property
    def supply(self) -> ActionSupply:
        """What a step has to play that was given nothing."""
        return ActionSupply.DRY if self._played else ActionSupply.NEVER

    def plays(self, rows_left: int) -> bool:
        """
        Tell whether a step that may play does when so many fresh rows are buffered. Ask before
        taking one: a row that is taken and not played is lost.
        """
        enough = max(rows_left, self._steps_with_rows) >= self._resume_rows
        return rows_left > 0 and (enough or not self._falling)

    def step(
        self,
        grant: MotionGrant,
        planned: np.ndarray | None,
        rows_left: int,
        now_ns: int,
        last: LastCommand | None,
        *,
        cleared: bool = False,
    ) -> LadderDecision:
        """
        Return what to want. `rows_left` are the fresh rows that are buffered, with `planned`, the
        first of them; `cleared` says that those of the step before were thrown away.
        """
        commander, allowed, cause = grant
        if allowed is AllowedMotion.PLAY and planned is not None:
            return self._play(planned)
        self._follow(commander)
        if cleared and not self._falling:
            self._dry = CAUSE_CLEARED
        self._steps_with_rows = self._steps_with_rows + 1 if rows_left > 0 else 0
        self._falling |= self._played
        if commander is ControlAuthority.LADDER and self._played:
            cause = CAUSE_TOO_FEW_ROWS if rows_left > 0 else self._dry
        if allowed is AllowedMotion.NONE or last is None:
            return _decision(self._silence(grant), None, cause)
        if allowed in (AllowedMotion.FALL_BACK, AllowedMotion.TEARDOWN):
            return self._go_down(now_ns, last, cause)
        kind = (
            RungKind.HOLD
            if allowed in (AllowedMotion.HOLD, AllowedMotion.INTERLOCK)
            else RungKind.RAMP
        )
        return _decision(kind, self._wanted(kind, last), cause)

    def revive(self) -> None:
        """The robot is not given up, or not any more: the next teardown begins at its top."""
        self._is_teardown_finished = False

    def clear_stop(self) -> None:
        """A person says that what the stop was for is over."""
        self.stopped = False

    def forget(self) -> None:
        """
        The robot is silent and may be elsewhere by now: nothing is commanded until something is
        played, which then begins at once.
        """
        self._played = self._falling = False
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()

    def _follow(self, commander: ControlAuthority) -> None:
        """Begin at the top where another one commands than in the step before."""
        if commander is not self._commander:
            self._commander, self._entered_ns = commander, None

    def _play(self, planned: np.ndarray) -> LadderDecision:
        self._commander = ControlAuthority.POLICY
        self._played, self._falling, self._dry = True, False, CAUSE_QUEUE_EMPTY
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()
        return LadderDecision(RungKind.PLAY, planned, 'play')

    def _silence(self, grant: MotionGrant) -> RungKind:
        """Return how it is called that nothing is commanded."""
        if self.stopped:
            return RungKind.STOP_SERVICE
        return RungKind.PLAY if grant.commander is ControlAuthority.LADDER else RungKind.NOTHING

    def _go_down(self, now_ns: int, last: LastCommand, cause: str) -> LadderDecision:
        kind = self._rung(self._rungs[self._commander], now_ns)
        if kind is not RungKind.STOP_SERVICE:
            return _decision(kind, self._wanted(kind, last), cause)
        self._is_teardown_finished = self._commander is ControlAuthority.TEARDOWN
        self.stopped = self._calls_stop
        # what still moves is brought to rest, since silence would let velocities go on
        kind = kind if self._calls_stop else RungKind.NOTHING
        return _decision(kind, self._ramp.stop(last), cause, call_stop_service=self._calls_stop)

    def _rung(self, rungs: tuple[Rung, ...], now_ns: int) -> RungKind:
        """Return the present rung; deadlines that have passed are behind it for good."""
        if self._entered_ns is None:
            self._index, self._entered_ns = 0, now_ns
        while True:
            rung = rungs[self._index]
            if rung.for_s is None or now_ns - self._entered_ns < rung.for_s * 1e9:
                return rung.kind
            self._entered_ns += int(rung.for_s * 1e9)
            self._index += 1

    def _wanted(self, kind: RungKind, last: LastCommand) -> np.ndarray:
        if kind is RungKind.RAMP:
            return self._ramp.stop(last)
        if kind is RungKind.SAFE_POSE:
            return self._ramp.approach(last, self._pose)
        if kind is RungKind.INITIAL_POSE and self.initial_pose is not None:
            return self._ramp.approach(last, self.initial_pose)
        if kind is RungKind.REPEAT_LAST:
            return last.position.copy()
        if kind is RungKind.ZERO:
            return np.zeros(len(last.position))
        return self._ramp.hold(last)


def _decision(
    kind: RungKind, wanted: np.ndarray | None, cause: str, *, call_stop_service: bool = False
) -> LadderDecision:
    return LadderDecision(kind, wanted, f'{kind.name.lower()}: {cause}', call_stop_service)
