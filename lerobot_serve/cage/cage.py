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

STOPPED sends nothing: joints stay at the position that they were told last. Two exceptions. A
latched cage first brings to rest what moves. A robot with velocities is told to slow down and
then to rest, again and again, since silence would let it drive on; if the limits themselves fail
that is at once, and if also the last command is not known it is done only for a robot that has
nothing but velocities.

After `latch_after_trips` judgements in a row other than PASS the latch closes, and only `reset`
opens it: who drives into the limits all the time is not to be trusted. An interlock counts like
every other reason, and a latched cage forces nothing. Tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Interlock
from lerobot_serve.cage.interlocks import Interlocks
from lerobot_serve.cage.judgement import Judgement, Last, Verdict
from lerobot_serve.cage.limits import Limits


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
        self._limits = Limits(actions, step_s)
        self._interlocks = Interlocks(interlocks, state_names, self._limits.names)
        self._latch_after = latch_after_trips
        self._in_a_row = 0
        self._latched_by = ''
        self.trips: Counter[str] = Counter()

    @property
    def latched(self) -> bool:
        return bool(self._latched_by)

    def start(self, measured: np.ndarray | None) -> Last | None:
        """Return the last command of a robot that was not commanded yet; None when unknown."""
        return self._limits.start(measured)

    def rest(self, last: Last | None) -> np.ndarray | None:
        """
        Return the command after which nobody commands: velocities at rest, positions where they
        are. None where silence does the same: without velocities, or before the first command.
        """
        limits = self._limits
        if not limits.is_velocity.any() or not limits.is_known(last):
            return None
        return limits.held(last)

    @property
    def latched_by(self) -> str:
        """Why it is latched, empty when it is not."""
        return self._latched_by

    def latch(self, reason: str) -> None:
        """Stop until `reset`, for a reason that its own rules do not see; the first one counts."""
        self._latched_by = self._latched_by or reason

    def reset(self) -> None:
        """Open the latch; what was counted stays counted."""
        self._in_a_row, self._latched_by = 0, ''

    def judge(
        self,
        wanted: np.ndarray,
        last: Last | None,
        *,
        measured: np.ndarray | None,
        state: np.ndarray | None,
    ) -> Judgement:
        """
        Return what may be commanded instead of `wanted`. Never raises.

        Without a `last` command it is bounded from the `measured` position, a velocity from rest.
        """
        try:
            with np.errstate(all='ignore'):
                if self.latched:
                    judgement = self._come_to_rest(last)
                else:
                    judgement = self._judge(wanted, last, measured, state)
        except Exception as error:
            # a cage that cannot judge must not let through
            judgement = self._stop(last, 'failed', f'the cage failed: {error}')
        self._count(judgement)
        return judgement

    def _judge(
        self,
        wanted: np.ndarray,
        last: Last | None,
        measured: np.ndarray | None,
        state: np.ndarray | None,
    ) -> Judgement:
        limits = self._limits
        if not limits.is_action(wanted):
            return self._stop(last, 'not_an_action', 'what is wanted is not one action')
        if last is None:
            last = self.start(measured)
        if not limits.is_known(last):
            return self._stop(None, 'position_unknown', 'where the robot is is not known')
        wanted = wanted.astype(np.float64)
        unmeasured = limits.unmeasured(measured)
        rules, unknown = self._interlocks.check(state)
        cause, reason = self._why_hold(wanted, unmeasured, unknown)
        target = limits.held(last) if cause else wanted
        if rules:
            target = target.copy()
            for rule in rules:
                target[rule.actions] = rule.values
        known = None if unmeasured else measured
        command = self._nearest(target, last, known, lead_back=not cause)
        if cause:
            return Judgement(Verdict.HELD, command, reason, cause)
        changed = command != wanted
        if not changed.any():
            return Judgement(Verdict.PASS, wanted)
        changed_by_rules = changed & (target != wanted)
        for rule in rules:
            first = rule.actions[changed_by_rules[rule.actions]]
            if len(first):
                reason = f'{rule.name} forces {limits.names[first[0]]}'
                return Judgement(Verdict.CLAMPED, command, reason, 'interlock')
        joint = int(changed.argmax())
        cause = limits.cause(joint, float(wanted[joint]), last, measured)
        return Judgement(Verdict.CLAMPED, command, f'{limits.names[joint]}: {cause}', cause)

    def _why_hold(self, wanted: np.ndarray, unmeasured: str, unknown: str) -> tuple[str, str]:
        """Return cause and reason why nothing may move on, both empty when it may."""
        finite = np.isfinite(wanted)
        if not finite.all():
            return 'not_finite', f'{self._limits.names[int(finite.argmin())]} is not finite'
        if unknown:
            return 'state_unknown', unknown
        if unmeasured:
            return 'position_unknown', f'{unmeasured}: its measured position is not known'
        return '', ''

    def _come_to_rest(self, last: Last | None) -> Judgement:
        """Return what a latched cage says."""
        if self._limits.is_known(last):
            command = self._slowed(last)
            if (command != last.position).any():
                return Judgement(Verdict.STOPPED, command, self._latched_by, 'latched')
        return self._stop(last, 'latched', self._latched_by)

    def _stop(self, last: object, cause: str, reason: str) -> Judgement:
        """Return that nothing is sent, to velocities that they are to rest. Never raises."""
        limits, command = self._limits, None
        if limits.is_velocity.any() and limits.is_known(last):
            try:
                command = self._slowed(last)
            except Exception:
                command = limits.held(last)
        elif limits.is_velocity.all() and len(limits.rest):
            command = limits.rest.copy()
        return Judgement(Verdict.STOPPED, command, reason, cause)

    def _slowed(self, last: Last) -> np.ndarray:
        return self._nearest(self._limits.held(last), last, None, lead_back=False)

    def _nearest(
        self, target: np.ndarray, last: Last, measured: np.ndarray | None, *, lead_back: bool
    ) -> np.ndarray:
        command = self._limits.nearest(target, last, measured, lead_back=lead_back)
        if not np.isfinite(command).all():
            raise ArithmeticError('a command would not be finite')
        return command

    def _count(self, judgement: Judgement) -> None:
        if judgement.verdict == Verdict.PASS:
            self._in_a_row = 0
            return
        self.trips[judgement.cause] += 1
        self._in_a_row += 1
        if self._in_a_row == self._latch_after and not self.latched:
            self._latched_by = (
                f'latched after {self._in_a_row} trips in a row, the last: {judgement.reason}; '
                'to be reset'
            )
