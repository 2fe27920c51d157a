# SPDX-License-Identifier: Apache-2.0
"""
The safety cage: bounds each target to a command that may be sent, for any input.

    PASS     the command equals the target
    CLAMPED  the nearest command within the limits, or an interlock overrides the target
    HELD     a required value is unknown: all joints slow down to rest
    STOPPED  the check failed, or the cage is latched

A target that is not finite is HELD, never a position of zero: joints at rest stay at the last
command; moving joints slow down within their acceleration limit, at once without one, and so does
a velocity. Interlocks still override their actions if their own state is known: a failing policy
must not disable them.

STOPPED sends nothing: joints stay at the last commanded position. Exceptions: a latched cage first
slows moving joints down to rest, within the lead limit, and applies interlocks. A robot with
velocities is repeatedly commanded to slow down and rest, since without commands it would continue
to move; at once if the limits themselves fail, and, if the last command is also unknown, only for
a robot whose actions are all velocities.

Interlocks act in every state once there is a last command: a latch, a pause or an invalid target
does not disable them.

After `latch_after_trips` consecutive results other than PASS the cage latches until `reset`: a
policy that is always at the limits is not trusted. Interlocks and unmeasured values neither count
nor end the series. Tick thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from lerobot_serve.arrays import is_finite
from lerobot_serve.cage.description import (
    ActionLimit,
    CageResult,
    Interlock,
    JointValues,
    LastCommand,
    Verdict,
)
from lerobot_serve.cage.interlocks import InterlockRule, Interlocks
from lerobot_serve.cage.limits import MotionLimits

NOT_AN_ACTION = 'not_an_action', 'command has a wrong shape or type'
# causes unrelated to the policy
UNCOUNTED_CAUSES = ('interlock', 'state_unknown', 'position_unknown')


class Cage:
    """Checks one action at a time. Raises ValueError for inconsistent limits."""

    def __init__(
        self,
        actions: tuple[ActionLimit, ...],
        interlocks: tuple[Interlock, ...],
        state_names: tuple[str, ...],
        *,
        step_s: float,
        latch_after_trips: int,
        latched_by: str = '',
        on_latch: Callable[[str], object] = lambda _: None,
    ) -> None:
        """
        `latched_by` is why it is latched from the start, `on_latch` is called with the reason
        before it latches.
        """
        self.limits = MotionLimits(actions, step_s)
        self._interlocks = Interlocks(interlocks, state_names, self.limits.names)
        self._latch_after = latch_after_trips
        self._consecutive_trips = 0
        self._latched_by, self._on_latch = latched_by, on_latch
        self.trips: Counter[str] = Counter()

    @property
    def latched(self) -> bool:
        return bool(self._latched_by)

    def is_interlock_active(self, state: JointValues | None) -> bool:
        """Return whether an interlock is active."""
        return self._interlocks.is_active(state)

    def rest(self, last: LastCommand | None) -> JointValues | None:
        """
        Return the final command: velocities at rest, positions unchanged. None where no command
        has the same effect: without velocities, or before the first command.
        """
        limits = self.limits
        if not limits.is_velocity.any() or not limits.is_known(last):
            return None
        return limits.held(last)

    @property
    def latch_reason(self) -> str:
        """Why the cage is latched; empty if it is not."""
        return self._latched_by

    def latch(self, reason: str) -> None:
        """Latch until `reset`; the first reason counts."""
        if not self.latched:
            # before any thread sees the latch: it may reset what it sees
            self._on_latch(reason)
            self._latched_by = reason

    def reset(self) -> None:
        """Clear the latch; counts of trips stay."""
        self._consecutive_trips, self._latched_by = 0, ''

    def reachable(
        self, target: JointValues, last: LastCommand, measured: JointValues | None
    ) -> JointValues:
        """
        Return the command of this step that is nearest to a target further away; the target
        itself where that cannot be computed, for `judge` to refuse. Never raises.
        """
        try:
            with np.errstate(all='ignore'):
                known = None if self.limits.unmeasured(measured) else measured
                return self.limits.nearest(target, last, known, allow_return=True)
        except Exception:
            return target

    def judge(
        self,
        wanted: JointValues,
        last: LastCommand | None,
        *,
        measured: JointValues | None,
        state: JointValues | None,
        allow_return: bool = True,
        blind: str = '',
    ) -> CageResult:
        """
        Return the command to send for the target `wanted`. Never raises.

        Without a `last` command only velocities are commanded, from rest: one measured sample is
        no start position. Without `allow_return` joints outside their limits or too far ahead do
        not return. `blind`: why the robot must hold for lack of measurements; empty if it may
        move.
        """
        try:
            with np.errstate(all='ignore'):
                last = self.limits.start(None) if last is None else last
                if self.latched:
                    result = self._come_to_rest(last, measured, state)
                else:
                    result = self._judge(wanted, last, measured, state, allow_return, blind)
        except Exception as error:
            # fails closed
            result = self._stop(last, 'failed', f'cage failed: {error}')
        self._count(result)
        return result

    def _judge(
        self,
        wanted: JointValues,
        last: LastCommand | None,
        measured: JointValues | None,
        state: JointValues | None,
        allow_return: bool,
        blind: str,
    ) -> CageResult:
        limits = self.limits
        rules, unknown = self._interlocks.check(state)
        is_action = limits.is_action(wanted)
        if not (is_action or rules):
            return self._stop(last, *NOT_AN_ACTION)
        if not limits.is_known(last):
            return self._stop(None, 'position_unknown', 'position unknown: no measured state')
        wanted = wanted.astype(np.float64) if is_action else np.full(limits.rest.shape, np.nan)
        unmeasured = limits.unmeasured(measured)
        cause, reason = self._hold_reason(wanted, blind, unmeasured, unknown)
        cause, reason = (cause, reason) if is_action else NOT_AN_ACTION
        known = None if unmeasured else measured
        target = _with_interlocks(limits.held(last) if cause else wanted, rules)
        command = self._command(
            target, last, known, rules, allow_return=allow_return and not cause
        )
        # such a command may exceed the step: an audit needs to know, whatever else is the reason
        overriding = _overriding_text(rule for rule in rules if rule.immediate)
        if cause:
            return CageResult(Verdict.HELD, command, overriding + reason, cause)
        changed = command != wanted
        if not changed.any():
            return CageResult(Verdict.PASS, wanted, overriding)
        changed_by_rules = changed & (target != wanted)
        for rule in rules:
            first = rule.actions[changed_by_rules[rule.actions]]
            if len(first):
                reason = f'{rule.name} overrides {limits.names[first[0]]}'
                return CageResult(Verdict.CLAMPED, command, reason, 'interlock')
        joint = int(changed.argmax())
        cause = limits.cause(joint, float(wanted[joint]), last, measured)
        reason = f'{overriding}{limits.names[joint]}: {cause}'
        return CageResult(Verdict.CLAMPED, command, reason, cause)

    def _hold_reason(
        self, wanted: JointValues, blind: str, unmeasured: str, unknown: str
    ) -> tuple[str, str]:
        """Return cause and reason to hold; both empty if motion may continue."""
        finite = np.isfinite(wanted)
        if not finite.all():
            return 'not_finite', f'{self.limits.names[int(finite.argmin())]}: not finite'
        if unknown:
            return 'state_unknown', unknown
        if blind:
            return 'position_unknown', blind
        if unmeasured:
            return 'position_unknown', f'{unmeasured}: measured position unknown'
        return '', ''

    def _come_to_rest(
        self, last: LastCommand | None, measured: JointValues | None, state: JointValues | None
    ) -> CageResult:
        """Return the result of a latched cage."""
        limits = self.limits
        if limits.is_known(last):
            rules, _ = self._interlocks.check(state)
            known = None if limits.unmeasured(measured) else measured
            target = _with_interlocks(limits.held(last), rules)
            command = self._command(target, last, known, rules, allow_return=False)
            if rules or (command != last.position).any():
                reason = _overriding_text(rules) + self._latched_by
                return CageResult(Verdict.STOPPED, command, reason, 'latched')
        return self._stop(last, 'latched', self._latched_by)

    def _command(
        self,
        target: JointValues,
        last: LastCommand,
        measured: JointValues | None,
        rules: list[InterlockRule],
        *,
        allow_return: bool,
    ) -> JointValues:
        """Return the command nearest to a target that includes the interlock values."""
        command = self._nearest(target, last, measured, allow_return=allow_return)
        for rule in rules:
            if rule.immediate:
                # except where a later rule overrides it
                forced = rule.actions[target[rule.actions] == rule.values]
                command[forced] = self.limits.at_once(target[forced], forced, last)
        return command

    def _stop(self, last: object, cause: str, reason: str) -> CageResult:
        """Return a stop: no command, or velocities slowing down to rest. Never raises."""
        limits, command = self.limits, None
        if limits.is_velocity.any() and limits.is_known(last):
            try:
                command = self._slowed(last)
            except Exception:
                command = limits.held(last)
        elif limits.is_velocity.all() and len(limits.rest):
            command = limits.rest.copy()
        return CageResult(Verdict.STOPPED, command, reason, cause)

    def _slowed(self, last: LastCommand) -> JointValues:
        return self._nearest(self.limits.held(last), last, None, allow_return=False)

    def _nearest(
        self,
        target: JointValues,
        last: LastCommand,
        measured: JointValues | None,
        *,
        allow_return: bool,
    ) -> JointValues:
        command = self.limits.nearest(target, last, measured, allow_return=allow_return)
        if not is_finite(command):
            raise ArithmeticError('command not finite')
        return command

    def _count(self, result: CageResult) -> None:
        if result.verdict == Verdict.PASS:
            self._consecutive_trips = 0
            return
        self.trips[result.cause] += 1
        if result.cause in UNCOUNTED_CAUSES:
            return
        self._consecutive_trips += 1
        if self._consecutive_trips == self._latch_after:
            self.latch(
                f'latched after {self._consecutive_trips} consecutive trips, the last: '
                f'{result.reason}; call ~/reset_cage'
            )


def _overriding_text(rules: Iterable[InterlockRule]) -> str:
    return ''.join(f'{rule.name} overrides its actions; ' for rule in rules)


def _with_interlocks(target: JointValues, rules: list[InterlockRule]) -> JointValues:
    """Return a copy of the target with the interlock values applied in order."""
    if rules:
        target = target.copy()
        for rule in rules:
            target[rule.actions] = rule.values
    return target
