# SPDX-License-Identifier: Apache-2.0
"""
Ramps: slow down to rest with limited jerk, and move slowly to a pose.

A position is at rest when it no longer changes, a velocity when it is zero; the quantity to reduce
is called speed here. The deceleration grows by the jerk each step, stays below its bound, and
falls again so that speed and deceleration reach zero together: each step takes the greatest one
from which that is still possible. No joint speeds up or turns back.

Each step starts from the last command of the cage, so that the two never drift apart. Where the
cage holds a joint back, its deceleration follows regardless of the jerk. Tick thread.
"""

from __future__ import annotations

from bisect import bisect_left
from math import inf

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.result import LastCommand

STOP_LIMIT_S = 60.0
TRAVEL_LIMIT_S = 60.0
# a quarter of the time for the deceleration to grow, a quarter to fall: smooth, at 4/3 of the
# deceleration of the hardest stop
RISE_SHARE = 4
# share of the top speed, for motion after a failure near people and objects
SLOW_SHARE = 0.25
# share of the largest change in one step; a smaller change is rounding and counts as zero
ROUNDING = 1e-6


def top_speed(limit: ActionLimit, step_s: float) -> float:
    """Return the greatest speed that the cage lets through."""
    if limit.motion is Motion.VELOCITY:
        return min(max(abs(limit.low), abs(limit.high)), limit.max_velocity)
    return min(limit.max_velocity, limit.max_step / step_s)


def top_deceleration(limit: ActionLimit, step_s: float) -> float:
    """Return the greatest deceleration that the cage lets through; infinite for no bound."""
    of_step = limit.max_step / step_s if limit.motion is Motion.VELOCITY else inf
    return min(limit.max_acceleration, of_step)


def stop_profile(limit: ActionLimit, steps: int, step_s: float) -> tuple[float, float]:
    """Return deceleration and jerk that bring a joint from its top speed to rest in `steps`."""
    rise = max(1, steps // RISE_SHARE)
    jerk = top_speed(limit, step_s) / (step_s**2 * rise * (steps - rise + 1))
    return rise * jerk * step_s, jerk


def stop_time_s(limit: ActionLimit, step_s: float) -> float:
    """Return the time of a ramp from top speed to rest; infinite above a minute."""
    allowed = top_deceleration(limit, step_s)

    def suffice(steps: int) -> bool:
        return stop_profile(limit, steps, step_s)[0] <= allowed

    choice = range(1, int(STOP_LIMIT_S / step_s))
    place = bisect_left(choice, True, key=suffice)
    # one step more, since a tick may come late
    return (choice[place] + 1) * step_s if place < len(choice) else inf


def travel_time_s(limit: ActionLimit, goal: float, stop_s: float, step_s: float) -> float:
    """
    Return the maximum time of a joint from any position within its limits to a goal, at slow
    speed; at most a minute, for joints without position limits.
    """
    if limit.motion is Motion.VELOCITY:
        return stop_s
    distance = max(abs(limit.low - goal), abs(limit.high - goal))
    # the distance at full speed, and the time to accelerate and brake
    travel_s = distance / (SLOW_SHARE * top_speed(limit, step_s)) + 2 * stop_s
    return min(travel_s, TRAVEL_LIMIT_S)


def max_stoppable_speed(left: Float64Array, rate: Float64Array, step_s: float) -> Float64Array:
    """
    Return the greatest value whose sum over the steps until zero is `left`, when it falls by
    `rate` each second.

    With n steps of the length t, v + (v - rate t) + ... is n v - rate t n (n - 1) / 2; multiplied
    by t it must be `left`. n is the smallest number of steps with a solution.
    """
    whole = left / (rate * step_s**2)
    steps = np.maximum(1.0, np.ceil((np.sqrt(8.0 * whole + 1.0) - 1.0) / 2.0))
    speed: Float64Array = (whole / steps + (steps - 1.0) / 2.0) * rate * step_s
    return speed


class Ramp:
    """Brakes of all joints, made so that each comes to rest within `stop_s`."""

    def __init__(self, limits: tuple[ActionLimit, ...], *, step_s: float, stop_s: float) -> None:
        # one step less, since a tick may come late
        steps = max(1, int(stop_s / step_s + ROUNDING) - 1)
        both = np.array([stop_profile(limit, steps, step_s) for limit in limits])
        self.deceleration, self.jerk = both.T
        self._no_speed = ROUNDING * self.jerk * step_s**2
        self._no_distance = ROUNDING * self.deceleration * step_s**2
        self._step_s = step_s
        self._is_velocity = np.array([limit.motion is Motion.VELOCITY for limit in limits])
        self._slow = np.array([SLOW_SHARE * top_speed(limit, step_s) for limit in limits])
        self._braking: Float64Array = np.zeros(len(limits))

    def reset(self) -> None:
        """Begin the next ramp without deceleration."""
        self._braking = np.zeros(len(self._braking))

    def stop(self, last: LastCommand) -> Float64Array:
        """Return the next command that slows down to rest."""
        moving = np.where(self._is_velocity, last.position, last.velocity)
        speed = np.abs(moving)
        grown = np.minimum(self._braking + self.jerk * self._step_s, self.deceleration)
        self._braking = np.minimum(grown, max_stoppable_speed(speed, self.jerk, self._step_s))
        left = speed - self._braking * self._step_s
        left = np.where(left > self._no_speed, left, 0.0)
        # the sum turns -0.0 into 0.0
        slower = np.copysign(left, moving) + 0.0
        return np.where(self._is_velocity, slower, last.position + slower * self._step_s)

    def hold(self, last: LastCommand) -> Float64Array:
        """Return the positions commanded last, and the next step of velocities towards 0."""
        return self._stop_velocities(last, last.position)

    def approach(self, last: LastCommand, pose: Float64Array) -> Float64Array:
        """Return the next command towards a pose, at slow speed and without overshoot."""
        offset = pose - last.position
        distance = np.abs(offset)
        # at the pose, but not at rest: the direction is that of the motion
        direction = np.sign(np.where(offset == 0, last.velocity, offset))
        speed = last.velocity * direction
        change = self.deceleration * self._step_s
        bound = np.minimum(
            self._slow, max_stoppable_speed(distance, self.deceleration, self._step_s)
        )
        # acceleration and deceleration are limited by the brakes
        speed = np.clip(bound, speed - change, speed + change)
        step = speed * self._step_s
        there = np.abs(distance - step) <= self._no_distance
        towards = np.where(there, pose, last.position + direction * step)
        return self._stop_velocities(last, towards)

    def _stop_velocities(self, last: LastCommand, positions: Float64Array) -> Float64Array:
        command: Float64Array = np.where(self._is_velocity, self.stop(last), positions)
        # positions are not on a ramp; a later ramp begins without deceleration
        self._braking = np.where(self._is_velocity, self._braking, 0.0)
        return command
