# SPDX-License-Identifier: Apache-2.0
"""
Rungs of the fallback ladder, and their parser. Plain; checked at start-up.

Without fresh actions the robot runs the rungs in order. Each rung except the last has a duration;
the last one is unlimited, so that a rung is always active.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
import re

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.records import EdgeState
from lerobot_serve.edge.fallback.ramp import stop_time_s, travel_time_s
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.parameters import ParameterError

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
