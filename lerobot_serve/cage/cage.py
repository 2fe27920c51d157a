"""
The judge: whatever is wanted, what it returns may be sent.

    PASS     the command is exactly what was wanted
    CLAMPED  the nearest that the limits allow, or what an interlock forces
    HELD     something that has to be known is not: no joint moves on
    STOPPED  nothing may be judged, or the latch has closed

Not finite is HELD, never zero on a position: what stands stays at the last command; what moves
comes to rest as its acceleration allows, which without that limit is at once, and a velocity
becomes zero the same way. An interlock forces its actions then too, as far as its own state is
known: a policy that fails must not take the reflex away.

STOPPED sends nothing: joints stay at the position that was commanded last. Exceptions: a latched
cage first brings to rest what moves, within the lead as always, and forces what interlocks force.
A robot with velocities is commanded to slow down and then to rest, again and again, since silence
would let it drive on; if the limits themselves fail that is at once, and if also the last command
is not known it is done only for a robot that has nothing but velocities.

Interlocks act in every state, as soon as there is a last command to bound them from: no latch, no
pause and no wanted value that makes no sense takes them away.

After `latch_after_trips` judgements in a row other than PASS the latch closes, and only `reset`
opens it: a policy that drives into the limits all the time is not to be trusted. An interlock and
values that are not measured are no sign of that; they neither count nor end the row. Tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Interlock
from lerobot_serve.cage.interlocks import InterlockRule, Interlocks
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.result import CageResult, LastCommand, Verdict

NOT_AN_ACTION = 'not_an_action', 'what is wanted is not one action'
# says nothing of the policy
UNCOUNTED_CAUSES = ('interlock', 'state_unknown', 'position_unknown')


class Cage:
    """Judges one action after the other. Raises ValueError for limits that make no sense."""

    def __init__(
        self,
        actions: tuple[ActionLimit, ...],
        interlocks: tuple[Interlock, ...],
        state_names: tuple[str, ...],
        *,
        step_s: float,
        latch_after_trips: int,
    ) -> None:
        self.limits = MotionLimits(actions, step_s)
        self._interlocks = Interlocks(interlocks, state_names, self.limits.names)
        self._latch_after = latch_after_trips
        self._consecutive_trips = 0
        self._latched_by = ''
        self.trips: Counter[str] = Counter()

    @property
    def latched(self) -> bool:
        return bool(self._latched_by)

    def force(self, state: np.ndarray | None) -> bool:
        """Return whether an interlock forces something now."""
        return self._interlocks.force(state)

    def rest(self, last: LastCommand | None) -> np.ndarray | None:
        """
        Return the command after which nobody commands: velocities at rest, positions where they
        are. None where silence does the same: without velocities, or before the first command.
        """
        limits = self.limits
        if not limits.is_velocity.any() or not limits.is_known(last):
            return None
        return limits.held(last)

    @property
    def latch_reason(self) -> str:
        """Why it is latched, empty when it is not."""
        return self._latched_by

    def latch(self, reason: str) -> None:
        """Stop until `reset`, for a reason that its own rules do not see; the first one counts."""
        self._latched_by = self._latched_by or reason

    def reset(self) -> None:
        """Open the latch; what was counted stays counted."""
        self._consecutive_trips, self._latched_by = 0, ''

    def judge(
        self,
        wanted: np.ndarray,
        last: LastCommand | None,
        *,
        measured: np.ndarray | None,
        state: np.ndarray | None,
        allow_return: bool = True,
        blind: str = '',
    ) -> CageResult:
        """
        Return what may be commanded instead of `wanted`. Never raises.

        Without a `last` command nothing is, but to velocities, which begin at rest: one measured
        sample is no place to begin from. Without `allow_return` no joint that is outside its limits
        or too far ahead is moved for it. `blind` is why the robot must not move on for want of
        measurements, empty when it may.
        """
        try:
            with np.errstate(all='ignore'):
                last = self.limits.start(None) if last is None else last
                if self.latched:
                    judgement = self._come_to_rest(last, measured, state)
                else:
                    judgement = self._judge(wanted, last, measured, state, allow_return, blind)
        except Exception as error:
            # a cage that cannot judge must not let through
            judgement = self._stop(last, 'failed', f'the cage failed: {error}')
        self._count(judgement)
        return judgement

    def _judge(
        self,
        wanted: np.ndarray,
        last: LastCommand | None,
        measured: np.ndarray | None,
        state: np.ndarray | None,
        allow_return: bool,
        blind: str,
    ) -> CageResult:
        limits = self.limits
        rules, unknown = self._interlocks.check(state)
        is_action = limits.is_action(wanted)
        if not (is_action or rules):
            return self._stop(last, *NOT_AN_ACTION)
        if not limits.is_known(last):
            return self._stop(None, 'position_unknown', 'where the robot is is not known')
        wanted = wanted.astype(np.float64) if is_action else np.full(limits.rest.shape, np.nan)
        unmeasured = limits.unmeasured(measured)
        cause, reason = self._hold_reason(wanted, blind, unmeasured, unknown)
        cause, reason = (cause, reason) if is_action else NOT_AN_ACTION
        known = None if unmeasured else measured
        target = _forced(limits.held(last) if cause else wanted, rules)
        command = self._command(
            target, last, known, rules, allow_return=allow_return and not cause
        )
        if cause:
            return CageResult(Verdict.HELD, command, reason, cause)
        changed = command != wanted
        if not changed.any():
            return CageResult(Verdict.PASS, wanted)
        changed_by_rules = changed & (target != wanted)
        for rule in rules:
            first = rule.actions[changed_by_rules[rule.actions]]
            if len(first):
                reason = f'{rule.name} forces {limits.names[first[0]]}'
                return CageResult(Verdict.CLAMPED, command, reason, 'interlock')
        joint = int(changed.argmax())
        cause = limits.cause(joint, float(wanted[joint]), last, measured)
        return CageResult(Verdict.CLAMPED, command, f'{limits.names[joint]}: {cause}', cause)

    def _hold_reason(
        self, wanted: np.ndarray, blind: str, unmeasured: str, unknown: str
    ) -> tuple[str, str]:
        """Return cause and reason why nothing may move on, both empty when it may."""
        finite = np.isfinite(wanted)
        if not finite.all():
            return 'not_finite', f'{self.limits.names[int(finite.argmin())]} is not finite'
        if unknown:
            return 'state_unknown', unknown
        if blind:
            return 'position_unknown', blind
        if unmeasured:
            return 'position_unknown', f'{unmeasured}: its measured position is not known'
        return '', ''

    def _come_to_rest(
        self, last: LastCommand | None, measured: np.ndarray | None, state: np.ndarray | None
    ) -> CageResult:
        """Return what a latched cage says."""
        limits = self.limits
        if limits.is_known(last):
            rules, _ = self._interlocks.check(state)
            known = None if limits.unmeasured(measured) else measured
            target = _forced(limits.held(last), rules)
            command = self._command(target, last, known, rules, allow_return=False)
            if rules or (command != last.position).any():
                forcing = ''.join(f'{rule.name} forces its actions; ' for rule in rules)
                return CageResult(Verdict.STOPPED, command, forcing + self._latched_by, 'latched')
        return self._stop(last, 'latched', self._latched_by)

    def _command(
        self,
        target: np.ndarray,
        last: LastCommand,
        measured: np.ndarray | None,
        rules: list[InterlockRule],
        *,
        allow_return: bool,
    ) -> np.ndarray:
        """Return what is nearest to a target in which the rules have forced their actions."""
        command = self._nearest(target, last, measured, allow_return=allow_return)
        for rule in rules:
            if rule.immediate:
                # where no later rule forces something else
                mine = rule.actions[target[rule.actions] == rule.values]
                command[mine] = self.limits.at_once(target[mine], mine, last)
        return command

    def _stop(self, last: object, cause: str, reason: str) -> CageResult:
        """Return that nothing is sent, to velocities that they are to rest. Never raises."""
        limits, command = self.limits, None
        if limits.is_velocity.any() and limits.is_known(last):
            try:
                command = self._slowed(last)
            except Exception:
                command = limits.held(last)
        elif limits.is_velocity.all() and len(limits.rest):
            command = limits.rest.copy()
        return CageResult(Verdict.STOPPED, command, reason, cause)

    def _slowed(self, last: LastCommand) -> np.ndarray:
        return self._nearest(self.limits.held(last), last, None, allow_return=False)

    def _nearest(
        self,
        target: np.ndarray,
        last: LastCommand,
        measured: np.ndarray | None,
        *,
        allow_return: bool,
    ) -> np.ndarray:
        command = self.limits.nearest(target, last, measured, allow_return=allow_return)
        if not np.isfinite(command).all():
            raise ArithmeticError('a command would not be finite')
        return command

    def _count(self, judgement: CageResult) -> None:
        if judgement.verdict == Verdict.PASS:
            self._consecutive_trips = 0
            return
        self.trips[judgement.cause] += 1
        if judgement.cause in UNCOUNTED_CAUSES:
            return
        self._consecutive_trips += 1
        if self._consecutive_trips == self._latch_after and not self.latched:
            self._latched_by = (
                f'latched after {self._consecutive_trips} trips in a row, the last: {judgement.reason}; '
                'to be reset'
            )


def _forced(target: np.ndarray, rules: list[InterlockRule]) -> np.ndarray:
    """Return the target with what the rules force, in their order; the target is not changed."""
    if rules:
        target = target.copy()
        for rule in rules:
            target[rule.actions] = rule.values
    return target
