"""
What the robot is made to do when there is nothing to play: rung after rung, by the clock.

Down: the first step without an action begins the first rung; each rung hands over to the next at
its deadline. Up: it is played again when `resume_rows` are buffered or when there was something
buffered for as many steps, so that single rows do not make the robot twitch, nor a chunk that is
shorter than that make it wait for ever.

With nothing ever played nothing is commanded: the robot stands where somebody put it. After
STOP_SERVICE nothing is commanded either, until `release`: who was stopped must not start by
itself. Tick thread; it reads no clock.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_serve.cage.judgement import Last
from lerobot_serve.edge.ramp import Ramp
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.edge.rungs import check_order, ramp_s, Rung, RungKind

DRY = 'nothing_to_play'
# somebody threw away what was buffered: the episode is over
CLEARED = 'cleared'
FEW_ROWS = 'too_few_rows_to_resume'
NOTHING_YET = 'nothing_played_yet'


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """
    What one step wants; None is to command nothing.

    `reason` is the rung and what led to it, as words with underscores. `call_stop` is true once
    in a fall: call the stop service now.
    """

    kind: RungKind
    wanted: np.ndarray | None
    reason: str
    call_stop: bool = False


class Ladder:
    """Owns where on the ladder the robot is. Raises ParameterError for rungs in a wrong order."""

    def __init__(
        self, rungs: tuple[Rung, ...], robot: Robot, *, step_s: float, resume_rows: int
    ) -> None:
        check_order(rungs)
        self._own, self._rungs = rungs, rungs
        self.ramp_s = ramp_s(rungs, robot, step_s)
        self._ramp = Ramp(robot.actions, step_s=step_s, stop_s=self.ramp_s)
        self._pose = None if robot.safe_pose is None else np.array(robot.safe_pose)
        self._resume_rows = resume_rows
        self._diverted_by = ''
        self._played = self._falling = self._stopped = False
        self._index = 0
        self._dry = DRY
        self._entered_ns: int | None = None
        self._steps_with_rows = 0

    def plays(self, rows_left: int) -> bool:
        """
        Tell whether a step plays when so many fresh rows are buffered. Ask before taking one: a
        row that is taken and not played is lost.
        """
        if self._stopped or self._diverted_by:
            return False
        enough = max(rows_left, self._steps_with_rows) >= self._resume_rows
        return rows_left > 0 and (enough or not self._falling)

    def step(
        self,
        planned: np.ndarray | None,
        rows_left: int,
        now_ns: int,
        last: Last | None,
        *,
        cleared: bool = False,
    ) -> Decision:
        """
        Return what to want. `rows_left` are the fresh rows that are buffered, with `planned`, the
        first of them; `cleared` says that somebody threw away those of the step before.
        """
        if planned is not None and self.plays(rows_left):
            return self._play(planned)
        if cleared and not self._falling:
            self._dry = CLEARED
        self._steps_with_rows = self._steps_with_rows + 1 if rows_left > 0 else 0
        cause = self._diverted_by or (FEW_ROWS if rows_left > 0 else self._dry)
        if self._stopped:
            return _decision(RungKind.STOP_SERVICE, None, cause)
        if not self._played or last is None:
            return _decision(RungKind.PLAY, None, NOTHING_YET)
        self._falling = True
        kind = self._rung(now_ns)
        if kind is RungKind.STOP_SERVICE:
            self._stopped = True
            return _decision(kind, None, cause, call_stop=True)
        return _decision(kind, self._wanted(kind, last), cause)

    def divert(self, rungs: tuple[Rung, ...], cause: str) -> None:
        """
        Play no more: go down these rungs instead, from the first. For a pause and for a robot that
        is given up. Raises ParameterError.
        """
        check_order(rungs)
        self._rungs, self._diverted_by = rungs, cause
        self._falling, self._entered_ns = self._played, None

    def release(self) -> None:
        """Somebody says to go on: what stopped or diverted is over."""
        if self._stopped:
            self.forget()
        elif self._diverted_by:
            self._entered_ns = None
        self._rungs, self._diverted_by, self._stopped = self._own, '', False

    def forget(self) -> None:
        """
        The robot may be elsewhere by now: command nothing until something is played, which then
        begins at once.
        """
        self._played = self._falling = False
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()

    def _play(self, planned: np.ndarray) -> Decision:
        self._played, self._falling, self._dry = True, False, DRY
        self._entered_ns, self._steps_with_rows = None, 0
        self._ramp.reset()
        return Decision(RungKind.PLAY, planned, 'play')

    def _rung(self, now_ns: int) -> RungKind:
        """Return the present rung; deadlines that have passed are behind it for good."""
        if self._entered_ns is None:
            self._index, self._entered_ns = 0, now_ns
        while True:
            rung = self._rungs[self._index]
            if rung.for_s is None or now_ns - self._entered_ns < rung.for_s * 1e9:
                return rung.kind
            self._entered_ns += int(rung.for_s * 1e9)
            self._index += 1

    def _wanted(self, kind: RungKind, last: Last) -> np.ndarray:
        if kind is RungKind.RAMP:
            return self._ramp.stop(last)
        if kind is RungKind.SAFE_POSE:
            return self._ramp.approach(last, self._pose)
        if kind is RungKind.REPEAT_LAST:
            return last.position.copy()
        if kind is RungKind.ZERO:
            return np.zeros(len(last.position))
        return self._ramp.hold(last)


def _decision(
    kind: RungKind, wanted: np.ndarray | None, cause: str, *, call_stop: bool = False
) -> Decision:
    return Decision(kind, wanted, f'{kind.name.lower()}: {cause}', call_stop)
