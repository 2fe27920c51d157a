# SPDX-License-Identifier: Apache-2.0
"""
Rungs of the fallback ladder, and their parser. Plain; checked at start-up.

Without fresh actions the robot runs the rungs in order. Each rung except the last has a duration;
the last one is unlimited, so that a rung is always active.

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
from dataclasses import dataclass
from math import ceil, inf
import re

import numpy as np

from lerobot_serve.arrays import Float64Array
from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion
from lerobot_serve.contract.records import EdgeState
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.parameters import ParameterError

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


RUNG_PATTERN = re.compile(r'([a-z_]+)(?: +([0-9]+(?:\.[0-9]+)?))?')
MAX_RUNG_S = 3600.0
DEFAULT_RAMP_S = 0.5


# EdgeState.msg says what each does
RungKind = EdgeState.Rung
# not allowed in a ladder
NOT_CONFIGURABLE = (RungKind.POLICY, RungKind.NO_COMMAND, RungKind.PERSON)


@dataclass(frozen=True, slots=True)
class Rung:
    """One rung; `for_s` None: unlimited."""

    kind: RungKind
    for_s: float | None = None

    def __str__(self) -> str:
        name = self.kind.name.lower()
        if self.for_s is None:
            return name
        # in the parsed format: every digit, no exponent
        return f'{name} {np.format_float_positional(self.for_s, trim="-")}'


def parse_ladder(
    texts: tuple[str, ...], robot: RobotDescription, *, step_s: float | None = None
) -> tuple[Rung, ...]:
    """
    Parse the parameter `ladder`; if empty, return the default of this robot.

    `step_s` is the control step if it differs from the robot file. Raises ParameterError for a
    ladder that is invalid or that this robot cannot execute.
    """
    step_s = step_s or 1 / robot.fps
    rungs = tuple(map(_parse, texts)) or default_ladder(robot, step_s)
    check_order(rungs)
    for rung in rungs:
        _check_robot(rung, robot, step_s)
    return rungs


def default_ladder(robot: RobotDescription, step_s: float) -> tuple[Rung, ...]:
    """Return a ramp, then hold, or zero for a robot with velocities only."""
    only_velocities = all(action.motion is Motion.VELOCITY for action in robot.actions)
    end = RungKind.ZERO if only_velocities else RungKind.HOLD
    return Rung(RungKind.RAMP, _default_ramp_s(robot, step_s)), Rung(end)


def _default_ramp_s(robot: RobotDescription, step_s: float) -> float:
    return max(DEFAULT_RAMP_S, _stop_time_s(robot, step_s)[0])


def ramp_s(rungs: tuple[Rung, ...], robot: RobotDescription, step_s: float) -> float:
    """Return the duration of the first ramp, or the default."""
    ramps = [rung.for_s for rung in rungs if rung.kind is RungKind.RAMP and rung.for_s]
    return ramps[0] if ramps else _default_ramp_s(robot, step_s)


def teardown_rungs(
    teardown: str, robot: RobotDescription, stop_s: float, *, step_s: float | None = None
) -> tuple[Rung, ...]:
    """
    Return the rungs of the teardown, none for `hold`. Raises ParameterError.

    After a pose no commands are sent, as with `stop_service`.
    """
    step_s = step_s or 1 / robot.fps
    ramp, end = Rung(RungKind.RAMP, stop_s), Rung(RungKind.STOP_SERVICE)
    if teardown == 'hold':
        return ()
    if teardown == 'stop_service':
        return ramp, end
    if teardown == 'initial_pose':
        # the initial pose may be anywhere within the limits
        farthest = [(limit, goal) for limit in robot.actions for goal in (limit.low, limit.high)]
        return ramp, Rung(RungKind.INITIAL_POSE, _longest_travel_s(farthest, stop_s, step_s)), end
    if robot.safe_pose is None:
        raise ParameterError(f"teardown 'safe_pose' {_NO_POSE}")
    goals = list(zip(robot.actions, robot.safe_pose, strict=True))
    return ramp, Rung(RungKind.SAFE_POSE, _longest_travel_s(goals, stop_s, step_s)), end


def _longest_travel_s(
    goals: list[tuple[ActionLimit, float]], stop_s: float, step_s: float
) -> float:
    return max(travel_time_s(limit, goal, stop_s, step_s) for limit, goal in goals)


def check_order(rungs: tuple[Rung, ...]) -> None:
    """Raise ParameterError for a rung that is never reached or that must not be last."""
    if not rungs:
        raise ParameterError('ladder must have at least one rung, got none')
    for rung in rungs[:-1]:
        if rung.kind is RungKind.STOP_SERVICE:
            raise ParameterError(
                'ladder: stop_service must be the last rung, since no commands are sent after it'
            )
        if rung.kind is RungKind.REPEAT_LAST and rung.for_s is None:
            raise ParameterError(f'ladder: repeat_last {_NEEDS_SECONDS}')
        if rung.for_s is None:
            raise ParameterError(
                f"ladder: '{rung}' is not the last rung and {_NEEDS_SECONDS}; only the last rung "
                'is unlimited'
            )
    last = rungs[-1]
    if last.kind is RungKind.REPEAT_LAST:
        raise ParameterError(
            f"ladder: '{last}' must not be the last rung, because the last rung is unlimited; add "
            'a rung that stops the robot, for example hold'
        )
    if last.for_s is not None:
        raise ParameterError(
            f"ladder: the last rung is unlimited and must have no duration, got '{last}'"
        )


_NEEDS_SECONDS = f'needs a duration, from 0 to {MAX_RUNG_S:g} s'
_NO_POSE = 'needs a safe_pose in the robot file, which has none'


def _parse(text: str) -> Rung:
    kinds = {kind.name.lower(): kind for kind in RungKind if kind not in NOT_CONFIGURABLE}
    match = RUNG_PATTERN.fullmatch(text)
    if not match or match[1] not in kinds:
        raise ParameterError(
            f'ladder: a rung must be one of {", ".join(kinds)}, followed by its seconds like '
            f"'ramp 0.5', got {text!r}"
        )
    if match[2] is None:
        return Rung(kinds[match[1]])
    for_s = float(match[2])
    if not 0 < for_s <= MAX_RUNG_S:
        raise ParameterError(
            f'ladder: the seconds of a rung must be above 0 and at most {MAX_RUNG_S:g}, '
            f'got {text!r}'
        )
    return Rung(kinds[match[1]], for_s)


def _check_robot(rung: Rung, robot: RobotDescription, step_s: float) -> None:
    if rung.kind is RungKind.SAFE_POSE and robot.safe_pose is None:
        raise ParameterError(f"ladder: '{rung}' {_NO_POSE}")
    positions = [a.name for a in robot.actions if a.motion is not Motion.VELOCITY]
    if rung.kind is RungKind.ZERO and positions:
        raise ParameterError(
            f"ladder: '{rung}' is for velocities only, and {positions[0]} is a position; use hold"
        )
    if rung.kind is RungKind.RAMP and rung.for_s is not None:
        needed_s, name = _stop_time_s(robot, step_s)
        if rung.for_s < needed_s:
            raise ParameterError(
                f"ladder: '{rung}' is too short to stop {name} from its top speed within its "
                f'limits; it needs at least {needed_s:g} s'
            )


def _stop_time_s(robot: RobotDescription, step_s: float) -> tuple[float, str]:
    """Return the stop time of the slowest joint, rounded up, and its name."""
    times = [(stop_time_s(limit, step_s), limit.name) for limit in robot.actions]
    needed_s, name = max(times, key=lambda time: time[0])
    if needed_s > MAX_RUNG_S:
        raise ParameterError(
            f'ladder: {name} needs more than a minute to stop from its top speed; raise its '
            'max_acceleration or lower its max_step in the robot file'
        )
    return ceil(100 * needed_s - 1e-6) / 100, name
