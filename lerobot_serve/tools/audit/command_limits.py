# SPDX-License-Identifier: Apache-2.0
"""
Checks that every command of an edge is finite and within its limits.

A person may have moved the robot outside its limits. The cage then permits the way back only, so a
command outside is a violation unless it is no further out than the one before. Steps are judged
between consecutive control steps: after a pause only the cage knows the position of the robot. A
command forced by an immediate interlock may exceed the step. One thread.
"""

from __future__ import annotations

from typing import Any

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.audit.command_bounds import CommandBounds, ROUNDING
from lerobot_serve.tools.traces.fields import integer, is_number, Record, text

Command = list[float]
# in the reason of a command that an interlock forced
INTERLOCK_PHRASE = ' forces '


class CommandLimitsCheck(RunCheck):
    """See the module."""

    CHECKS = ('finite', 'position', 'step')
    KINDS = ('executed',)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'nothing was commanded'

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._finite, self._position, self._step = self.tallies
        self._last: Command | None = None
        self._tick: int | None = None

    def observe(self, record: Record) -> None:
        tick, before = integer(record, 'control_step'), self._tick
        follows = tick is not None and before is not None and tick == before + 1
        last = self._last if follows else None
        self._tick = tick
        if 'commanded' not in record:
            # a step without a command does not move the robot
            self._last = last
            return
        self._last = self._judge(record, last)

    def _judge(self, record: Record, last: Command | None) -> Command | None:
        """Return the command, None when it is invalid."""
        caged, bounds = record['commanded'], self.run.bounds
        self._finite.judged += 1
        if type(caged) is not list or not caged or not all(map(is_number, caged)):
            self._finite.add_violation('command has values that are not finite')
            return None
        if bounds is None:
            self._position.why_not = self._step.why_not = self.run.no_bounds_reason
            return None
        self._position.judged += 1
        if len(caged) != len(bounds.names):
            self._position.add_violation(
                f'command has {len(caged)} values, the limits have {len(bounds.names)}'
            )
            return None
        self._check_position(caged, last, bounds)
        if last is not None:
            is_stop, forced = (
                text(record, 'cage_result') == 'stopped',
                INTERLOCK_PHRASE in text(record, 'reason'),
            )
            self._check_step(caged, last, bounds, is_stop=is_stop, forced=forced)
        return caged

    def _check_position(self, caged: Command, last: Command | None, bounds: CommandBounds) -> None:
        for joint, (value, low, high) in enumerate(
            zip(caged, bounds.low, bounds.high, strict=True)
        ):
            if low <= value <= high:
                continue
            before = None if last is None else last[joint]
            if before is not None and (before <= value < low or high < value <= before):
                continue
            self._position.add_violation(
                f'{bounds.names[joint]} is commanded to {value:g}, its limits are '
                f'{low:.6g} to {high:.6g}'
            )
            return

    def _check_step(
        self, caged: Command, last: Command, bounds: CommandBounds, *, is_stop: bool, forced: bool
    ) -> None:
        self._step.judged += 1
        for joint, (value, before, step) in enumerate(zip(caged, last, bounds.step, strict=True)):
            way = abs(value - before)
            if way <= step or way <= step + ROUNDING * max(1.0, abs(value)):
                continue
            # an interlock or a stop may change a velocity at once
            if bounds.names[joint] in bounds.immediate and forced:
                continue
            if is_stop and bounds.is_velocity[joint] and abs(value) <= abs(before):
                continue
            self._step.add_violation(
                f'{bounds.names[joint]} goes from {before:g} to {value:g}, a step may be {step:g}'
            )
            return
