# SPDX-License-Identifier: Apache-2.0
"""
Motion limits: bound a command relative to the previous one. Arrays with one value per joint.

Limits may conflict. Their order of precedence:

1. Step and velocity. Always kept.
2. Position. A joint inside its limits stays inside; one outside moves no further out.
3. Lead. A command that is `max_lead` ahead of the measured position moves no further ahead.
4. Acceleration. Yields to the three above: at a limit, or when the measured position is held back,
   a joint stops at once. At a limit that is rare because of
5. Braking. A joint moves only as fast as it can still stop before its limit.
6. Return. A joint outside its position limits, then one too far ahead of its measured position,
   returns as fast as the rules above allow, for any target.

The command is the one nearest to the target within these. Standing still satisfies 1, 2 and 3, so
a command always exists.

A velocity (Motion.VELOCITY) is bounded itself, by low, high and max_velocity, and changes at most
by max_step and by max_acceleration times the step. It has no position, hence no lead, no braking.

A control step lasts `step_s`. Plain, without a clock; any thread.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import is_finite
from lerobot_serve.cage.description import (
    ActionLimit,
    is_numeric_array,
    JointValues,
    LastCommand,
    Motion,
)

# tolerance: a target at a limit is not clamped for rounding
ROUNDING = 1 + 1e-9
# replaces infinity where 0 * inf or inf / inf would occur
HUGE = 1e300
# a smaller change in one step, as a share of the largest, is rounding, not motion
REST_SHARE = 1e-6
# downwards and upwards
DIRECTIONS = np.array(((-1.0,), (1.0,)))


class MotionLimits:
    """
    The limits of a robot. Raises ValueError for inconsistent ones.

    A window is two rows, how far each joint may go downwards and upwards. Downwards is written
    with the opposite sign, so that both are upper bounds and every rule is written once.
    """

    def __init__(self, actions: tuple[ActionLimit, ...], step_s: float) -> None:
        if not 0 < step_s < inf:
            raise ValueError(f'a control step must be above 0 s, got {step_s} s')
        for action in actions:
            _check_limits(action)
        self.names = tuple(action.name for action in actions)
        self.is_velocity = np.array([action.motion is Motion.VELOCITY for action in actions], bool)

        def column(name: str) -> JointValues:
            return np.array([getattr(action, name) for action in actions], float)

        def of_positions(values: JointValues) -> JointValues:
            return np.where(self.is_velocity, inf, values)

        fastest = np.where(self.is_velocity, column('max_velocity'), inf)
        low, high = np.maximum(column('low'), -fastest), np.minimum(column('high'), fastest)
        self.low, self.high, self.max_step = low, high, column('max_step')
        self.rest = np.clip(0.0, low, high)
        self._bounds = np.array((-low, high))
        self._finite_bounds = np.minimum(self._bounds, HUGE)
        change = np.where(self.is_velocity, column('max_acceleration'), column('max_velocity'))
        self._pace = _both(np.minimum(self.max_step, change * step_s) * ROUNDING)
        brake = of_positions(column('max_acceleration') * step_s**2)
        self._accelerates = bool(np.isfinite(brake).any())
        self._change = _both(brake * ROUNDING)
        self._half_brake = _both(np.minimum(brake, HUGE) / 2)
        self._two_over_brake = 1 / self._half_brake
        self.step_s = step_s
        self._fastest_step = of_positions(column('max_velocity') * step_s * ROUNDING)
        self._at_rest = REST_SHARE * np.minimum(self.max_step, HUGE)
        self._lead = _both(of_positions(column('max_lead')))
        self.max_lead = self._lead[1]
        self._leads = np.isfinite(self._lead[1])
        self._any_leads = bool(self._leads.any())

    def is_action(self, value: object) -> TypeGuard[JointValues]:
        """Return whether this is one number per joint, finite or not. Never raises."""
        return is_numeric_array(value, self.rest.shape)

    def is_known(self, last: object) -> TypeGuard[LastCommand]:
        """Return whether the last command is valid and finite. Never raises."""
        return (
            isinstance(last, LastCommand)
            and self.is_action(last.position)
            and self.is_action(last.velocity)
            and is_finite(last.position)
            and is_finite(last.velocity)
        )

    def start(self, measured: JointValues | None) -> LastCommand | None:
        """
        Return the start of a first command: positions as measured, velocities at rest.

        None if a position is unknown. Measured velocities are ignored.
        """
        if self.is_velocity.all():
            return LastCommand(self.rest, np.zeros(self.rest.shape))
        if not self.is_action(measured):
            return None
        position = np.where(self.is_velocity, self.rest, measured)
        known = is_finite(position)
        return LastCommand(position, np.zeros(self.rest.shape)) if known else None

    def unmeasured(self, measured: JointValues | None) -> str:
        """Return the first joint with a lead limit and no measurement; empty if none."""
        if not self._any_leads:
            return ''
        known = np.isfinite(measured) if self.is_action(measured) else np.zeros_like(self._leads)
        missing = self._leads & ~known
        return self.names[int(missing.argmax())] if missing.any() else ''

    def held(self, last: LastCommand) -> JointValues:
        """
        Return the target that holds all joints: the last position, or velocity zero.

        A held velocity would continue the motion. If zero is not allowed, the target is the
        nearest allowed value.
        """
        return np.where(self.is_velocity, self.rest, last.position)

    def moves(self, last: LastCommand) -> bool:
        """Return whether the last command is in motion; `last` is valid."""
        still = last.velocity * self.step_s
        if self.is_velocity.any():
            still = np.where(self.is_velocity, last.position - self.rest, still)
        return bool((abs(still) > self._at_rest).any())

    def at_once(
        self, values: JointValues, joints: NDArray[np.int_], last: LastCommand
    ) -> JointValues:
        """
        Return the commands of some joints that are nearest to `values`, bounded only in position
        and velocity.
        """
        here, fastest = last.position[joints], self._fastest_step[joints]
        low = np.minimum(-self._bounds[0, joints], np.where(self.is_velocity[joints], inf, here))
        high = np.maximum(self._bounds[1, joints], np.where(self.is_velocity[joints], -inf, here))
        low, high = np.maximum(low, here - fastest), np.minimum(high, here + fastest)
        command: JointValues = np.clip(values, low, high)
        return command

    def nearest(
        self,
        wanted: JointValues,
        last: LastCommand,
        measured: JointValues | None,
        *,
        allow_return: bool,
    ) -> JointValues:
        """
        Return the command nearest to `wanted`; `last` is valid. Several commands are rows, each
        with its own `last`.

        Without `measured` lead limits are ignored. Without `allow_return` joints outside their
        limits do not return: a joint at rest stays at rest.
        """
        here = _outward(last.position)
        window = np.minimum(here + self._pace, np.maximum(self._bounds, here))
        lead = self._lead_window(last.position, measured)
        if lead is not None:
            window = np.minimum(window, np.maximum(lead, here))
        if self._accelerates:
            step = _outward(last.velocity * self.step_s)
            window = _narrow(window, here + step + self._change)
            room = np.maximum(self._finite_bounds - here, 0)
            window = _narrow(window, here + self._stoppable(room))
        if allow_return:
            window = _narrow(window, self._bounds)
            if lead is not None:
                window = _narrow(window, lead)
        command: JointValues = np.minimum(
            np.maximum(wanted, -window[..., 0, :]), window[..., 1, :]
        )
        return command

    def _lead_window(self, here: JointValues, measured: JointValues | None) -> JointValues | None:
        """Return the window of the lead limits, None without any."""
        if measured is None or not self._any_leads:
            return None
        return _outward(np.where(self._leads, measured, here)) + self._lead

    def _stoppable(self, room: JointValues) -> JointValues:
        """
        Return the largest step after which a joint can still stop within `room`.

        A step s is followed by s - b, s - 2b, ... while these are positive; n steps in all make
        n s - b n (n - 1) / 2, and n is the smallest number with b n (n + 1) / 2 >= room.
        """
        steps = np.ceil(np.sqrt(room * self._two_over_brake + 0.25) - 0.5)
        steps = np.maximum(steps, 1)
        step: JointValues = room / steps + self._half_brake * (steps - 1)
        return step

    def cause(
        self, joint: int, wanted: float, last: LastCommand, measured: JointValues | None
    ) -> str:
        """Return the first limit, as a word, that keeps a joint from its target."""
        here = float(last.position[joint])
        step = wanted - here
        if not -self._bounds[0, joint] <= wanted <= self._bounds[1, joint]:
            return 'limit'
        if abs(step) > self._pace[1, joint]:
            return self._rate_cause(joint)
        lead = 0.0 if measured is None else abs(wanted - measured[joint])
        if self._leads[joint] and lead > self._lead[1, joint]:
            return 'max_lead'
        if abs(step - last.velocity[joint] * self.step_s) > self._change[1, joint]:
            return 'max_acceleration'
        return 'limit'

    def _rate_cause(self, joint: int) -> str:
        if self._pace[1, joint] >= self.max_step[joint]:
            return 'max_step'
        return 'max_acceleration' if self.is_velocity[joint] else 'max_velocity'


def _both(values: JointValues) -> JointValues:
    return np.array((values, values))


def _outward(values: JointValues) -> JointValues:
    """Return values, or rows of them, as a window (downwards, upwards), see MotionLimits."""
    rows: JointValues = values[..., None, :] * DIRECTIONS
    return rows


def _narrow(window: JointValues, to: JointValues) -> JointValues:
    """Return the intersection of two windows; if empty, the nearest end of the first."""
    narrowed: JointValues = np.minimum(np.maximum(to, -window[..., ::-1, :]), window)
    return narrowed


def _check_limits(action: ActionLimit) -> None:
    paces = (action.max_step, action.max_velocity, action.max_acceleration)
    if not action.low <= action.high or not all(pace > 0 for pace in (*paces, action.max_lead)):
        raise ValueError(f'{action.name}: needs low <= high and limits above 0, got {action}')
    fastest = action.max_velocity if action.motion is Motion.VELOCITY else inf
    if max(action.low, -fastest) > min(action.high, fastest) or not isfinite(action.max_step):
        raise ValueError(f'{action.name}: its limits allow no command, got {action}')
