# SPDX-License-Identifier: Apache-2.0
"""
Checks that every command of an edge is finite and within its limits.

The robot may have been moved outside its limits by hand. The cage then only permits motion back,
so a command outside is a violation unless it is no further out than the previous one. Steps are
judged between consecutive control steps: after a pause only the cage knows the position of the
robot. A command forced by an immediate interlock may exceed the step. One thread.
"""

from __future__ import annotations

from dataclasses import dataclass
import json
from math import inf
from typing import Any, NamedTuple

from lerobot_serve.tools.audit.checks.check import RunCheck
from lerobot_serve.tools.traces.fields import is_number, number, text, values
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import ExecutedRecord, Record

# relative rounding error of a float32
ROUNDING = 1e-6
Command = list[float]
# in the reason of a command that an interlock overrides; earlier versions wrote `forces`
INTERLOCK_PHRASES = (' overrides ', ' forces ')


@dataclass(frozen=True, slots=True)
class CommandBounds:
    """One value per action; `step` is the largest change in one control step."""

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    step: tuple[float, ...]
    is_velocity: tuple[bool, ...]
    # actions that an interlock may force at once
    immediate: frozenset[str] = frozenset()


def read_bounds(value: Any) -> CommandBounds:
    """Decode the parameter `limits`: a JSON object, or its text. Raises ValueError."""
    content = _opened(value)
    step_s = number(content, 'step_s')
    rows = values(content, 'actions')
    if step_s is None or step_s <= 0 or not rows:
        raise ValueError('the limits of the header have no step_s above 0 or no actions')
    bounds = [_joint_bounds(row, step_s) for row in rows]
    immediate = values(content, 'immediate') or []
    return CommandBounds(
        names=tuple(each.name for each in bounds),
        low=tuple(each.low for each in bounds),
        high=tuple(each.high for each in bounds),
        step=tuple(each.step for each in bounds),
        is_velocity=tuple(each.is_velocity for each in bounds),
        immediate=frozenset(name for name in immediate if type(name) is str),
    )


def _opened(value: Any) -> Record:
    try:
        content = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        content = None
    if type(content) is not dict:
        raise ValueError('the limits of the header are not a JSON object')
    return content


class _JointBounds(NamedTuple):
    """One value of each field of CommandBounds."""

    name: str
    low: float
    high: float
    step: float
    is_velocity: bool


def _joint_bounds(row: Any, step_s: float) -> _JointBounds:
    """Return the bounds of one action. Raises ValueError."""
    if type(row) is not dict or row.get('motion') not in ('position', 'velocity'):
        raise ValueError('the limits of the header have an action without a motion')
    is_velocity = row['motion'] == 'velocity'
    fastest = _limit(row, 'max_velocity')
    change = _limit(row, 'max_acceleration') if is_velocity else fastest
    low, high = _limit(row, 'low', -inf), _limit(row, 'high')
    if is_velocity:
        low, high = max(low, -fastest), min(high, fastest)
    step = min(_limit(row, 'max_step'), change * step_s)
    name = text(row, 'name')
    return _JointBounds(name, low - _slack(low), high + _slack(high), step, is_velocity)


def _limit(row: Record, name: str, nothing: float = inf) -> float:
    if row.get(name) is None:
        return nothing
    value = number(row, name)
    if value is None:
        raise ValueError(f'{name} in the limits of the header is not a number')
    return value


def _slack(bound: float) -> float:
    return ROUNDING * max(1.0, abs(bound)) if abs(bound) < inf else 0.0


class CommandLimitsCheck(RunCheck[ExecutedRecord]):
    """See the module."""

    CHECKS = ('finite', 'position', 'step')
    RECORDS = (ExecutedRecord,)
    ROLES = ('edge',)
    NOT_JUDGED_REASON = 'nothing was commanded'

    def __init__(self, run: TraceRun, *, show: int) -> None:
        super().__init__(run, show=show)
        self._finite, self._position, self._step = self.tallies
        self._last: Command | None = None
        self._control_step: int | None = None
        self._bounds: CommandBounds | None = None
        self._no_bounds_reason = ''

    def observe(self, record: ExecutedRecord) -> None:
        step, before = record.control_step, self._control_step
        follows = step is not None and before is not None and step == before + 1
        last = self._last if follows else None
        self._control_step = step
        if record.commanded is None:
            # a step without a command does not move the robot
            self._last = last
            return
        self._last = self._judge(record, last)

    def _judge(self, record: ExecutedRecord, last: Command | None) -> Command | None:
        """Return the command, None when it is invalid."""
        values = record.commanded or []
        command = [value for value in values if is_number(value)]
        self._finite.judged += 1
        if not command or len(command) != len(values):
            self._finite.add_violation('command has values that are not finite')
            return None
        bounds = self._read_bounds()
        if bounds is None:
            self._position.why_not = self._step.why_not = self._no_bounds_reason
            return None
        self._position.judged += 1
        if len(command) != len(bounds.names):
            self._position.add_violation(
                f'command has {len(command)} values, the limits have {len(bounds.names)}'
            )
            return None
        self._check_position(command, last, bounds)
        if last is not None:
            is_stop = record.cage_result == 'stopped'
            forced = any(phrase in record.reason for phrase in INTERLOCK_PHRASES)
            self._check_step(command, last, bounds, is_stop=is_stop, forced=forced)
        return command

    def _read_bounds(self) -> CommandBounds | None:
        """Return the limits of the header, decoded once; None without limits."""
        if self._bounds or self._no_bounds_reason:
            return self._bounds
        if 'limits' not in self.run.header_parameters:
            self._no_bounds_reason = self.run.no_limits_reason
            return None
        try:
            self._bounds = read_bounds(self.run.header_parameters['limits'])
        except ValueError as error:
            self._no_bounds_reason = str(error)
        return self._bounds

    def _check_position(
        self, command: Command, last: Command | None, bounds: CommandBounds
    ) -> None:
        for joint, (value, low, high) in enumerate(
            zip(command, bounds.low, bounds.high, strict=True)
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
        self,
        command: Command,
        last: Command,
        bounds: CommandBounds,
        *,
        is_stop: bool,
        forced: bool,
    ) -> None:
        self._step.judged += 1
        for joint, (value, before, step) in enumerate(
            zip(command, last, bounds.step, strict=True)
        ):
            distance = abs(value - before)
            if distance <= step or distance <= step + ROUNDING * max(1.0, abs(value)):
                continue
            # an interlock or a stop may change a velocity at once
            if bounds.names[joint] in bounds.immediate and forced:
                continue
            if is_stop and bounds.is_velocity[joint] and abs(value) <= abs(before):
                continue
            self._step.add_violation(
                f'{bounds.names[joint]} changes from {before:g} to {value:g}, at most {step:g} is '
                'allowed'
            )
            return
