# SPDX-License-Identifier: Apache-2.0
"""
Check that every command of an edge is finite and within its limits, and count the sessions whose
commands nobody can check. One thread.

The robot may have been moved outside its limits by hand. The cage then only permits motion back,
so a command outside is a violation unless it is no further out than the previous one. Steps are
judged between consecutive control steps: after a pause only the cage knows the position of the
robot. A command forced by an immediate interlock may exceed the step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from lerobot_serve.tools.audit.check import RunCheck
from lerobot_serve.tools.traces.fields import is_number
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format.records import (
    ExecutedRecord,
    PlacementRecord,
    RequestRecord,
    TraceRecord,
)

# relative rounding error of a float32
ROUNDING = 1e-6
Command = list[float]
# in the reason of a command that an interlock overrides; earlier versions wrote `forces`
INTERLOCK_PHRASES = (' overrides ', ' forces ')


class JointBounds(NamedTuple):
    """`step`: the largest change in one control step; an interlock may force an immediate one."""

    name: str
    low: float
    high: float
    step: float
    is_velocity: bool
    is_immediate: bool


class _ActionLimits(Struct, frozen=True):
    motion: Literal['position', 'velocity']
    name: str = ''
    low: float | None = None
    high: float | None = None
    max_velocity: float | None = None
    max_acceleration: float | None = None
    max_step: float | None = None

    def bounds(self, step_s: float, immediate: Collection[str]) -> JointBounds:
        is_velocity = self.motion == 'velocity'
        fastest = _or(self.max_velocity, inf)
        low, high = _or(self.low, -inf), _or(self.high, inf)
        if is_velocity:
            low, high = max(low, -fastest), min(high, fastest)
        change = _or(self.max_acceleration, inf) if is_velocity else fastest
        step = min(_or(self.max_step, inf), change * step_s)
        is_immediate = self.name in immediate
        low, high = low - _slack(low), high + _slack(high)
        return JointBounds(self.name, low, high, step, is_velocity, is_immediate)


class _Limits(Struct, frozen=True):
    step_s: Annotated[float, Meta(gt=0)]
    actions: Annotated[list[_ActionLimits], Meta(min_length=1)]
    immediate: list[Any] = []


DECODER = msgspec.json.Decoder(_Limits)


def read_bounds(value: Any) -> list[JointBounds]:
    """Decode the parameter `limits`: a JSON object, or its text. Raises ValueError."""
    try:
        is_text = isinstance(value, str)
        limits = DECODER.decode(value) if is_text else msgspec.convert(value, _Limits)
    except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f'the limits of the header cannot be read: {error}') from None
    return [each.bounds(limits.step_s, limits.immediate) for each in limits.actions]


def _or(value: float | None, nothing: float) -> float:
    return nothing if value is None else value


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
        self._bounds: list[JointBounds] | None = None
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
        if len(command) != len(bounds):
            self._position.add_violation(
                f'command has {len(command)} values, the limits have {len(bounds)}'
            )
            return None
        self._check_position(command, last, bounds)
        if last is not None:
            is_stop = record.cage_result == 'stopped'
            forced = any(phrase in record.reason for phrase in INTERLOCK_PHRASES)
            self._check_step(command, last, bounds, is_stop=is_stop, forced=forced)
        return command

    def _read_bounds(self) -> list[JointBounds] | None:
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
        self, command: Command, last: Command | None, bounds: Sequence[JointBounds]
    ) -> None:
        befores: Sequence[float | None] = last or [None] * len(command)
        for value, before, joint in zip(command, befores, bounds, strict=True):
            if joint.low <= value <= joint.high:
                continue
            if before is not None and (
                before <= value < joint.low or joint.high < value <= before
            ):
                continue
            self._position.add_violation(
                f'{joint.name} is commanded to {value:g}, its limits are {joint.low:.6g} to '
                f'{joint.high:.6g}'
            )
            return

    def _check_step(
        self,
        command: Command,
        last: Command,
        bounds: Sequence[JointBounds],
        *,
        is_stop: bool,
        forced: bool,
    ) -> None:
        self._step.judged += 1
        for value, before, joint in zip(command, last, bounds, strict=True):
            distance = abs(value - before)
            if distance <= joint.step + ROUNDING * max(1.0, abs(value)):
                continue
            # an interlock or a stop may change a velocity at once
            if joint.is_immediate and forced:
                continue
            if is_stop and joint.is_velocity and abs(value) <= abs(before):
                continue
            self._step.add_violation(
                f'{joint.name} changes from {before:g} to {value:g}, at most {joint.step:g} is '
                'allowed'
            )
            return


# how the client_id of such a session begins -> what it came through
UNCAGED = {'gateway/': 'a gateway', 'client/': 'the Python client'}


@dataclass(frozen=True, slots=True)
class UncagedSessions:
    """Callers without a cage, their sessions, and what they came through."""

    callers: int
    sessions: int
    through: str = ''

    @property
    def text(self) -> str:
        """What the reader of a report must know; empty without such sessions."""
        if not self.callers:
            return ''
        sessions = '1 session' if self.sessions == 1 else f'{self.sessions} sessions'
        callers = '1 caller' if self.callers == 1 else f'{self.callers} callers'
        return (
            f'{sessions} of {callers} came through {self.through}, without safety cage and '
            'fallback ladder: what these callers executed is not recorded and not judged.'
        )


class UncagedSessionCounter:
    """Observes the records of all runs."""

    def __init__(self) -> None:
        # client -> epochs of its sessions
        self._epochs: dict[str, set[int | None]] = {}

    def observe(self, record: TraceRecord) -> None:
        """Note the session of a request or placement."""
        if not isinstance(record, (RequestRecord, PlacementRecord)):
            return
        client_id = record.client_id
        if client_id.startswith(tuple(UNCAGED)):
            self._epochs.setdefault(client_id, set()).add(record.session_epoch)

    def found(self) -> UncagedSessions:
        """Return the counts."""
        through = [
            text
            for prefix, text in UNCAGED.items()
            if any(c.startswith(prefix) for c in self._epochs)
        ]
        sessions = sum(map(len, self._epochs.values()))
        return UncagedSessions(len(self._epochs), sessions, ' or '.join(through))
