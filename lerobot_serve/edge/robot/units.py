# SPDX-License-Identifier: Apache-2.0
"""
Conversion between the units of a robot and of its policy.

Inside the edge everything is in the units of the robot: its driver, limits, queue, cage, traces.
On the wire everything is in the units of the policy: the state of an observation, chunks, the
prefix, the limits and the executed rows that servers and routers see. Values are converted only
where messages are built and opened. Plain data, pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import pi

import numpy as np

from lerobot_serve.arrays import Float64Array, FloatArray
from lerobot_serve.cage.description import ActionLimit
from lerobot_serve.contract.data_path.execution_report import ExecutionReport

# unit -> the kind of quantity, and its size in the first unit of that kind
KINDS: dict[str, tuple[str, float]] = {
    'rad': ('angle', 1.0),
    'deg': ('angle', pi / 180),
    'm': ('length', 1.0),
    'mm': ('length', 1e-3),
    'rad/s': ('turning', 1.0),
    'deg/s': ('turning', pi / 180),
    'm/s': ('speed', 1.0),
    'mm/s': ('speed', 1e-3),
}
# LeRobot's motor normalisation over the calibrated range -> the numbers at its two ends
RANGES: dict[str, tuple[float, float]] = {
    'range_m100_100': (-100.0, 100.0),
    'range_0_100': (0.0, 100.0),
}
UNIT_NAMES = (*KINDS, *RANGES)
RATES = ('turning', 'speed')


@dataclass(frozen=True, slots=True)
class UnitConversion:
    """
    The units of one value: the robot's number is `scale` times the policy's plus `offset`.
    """

    robot: str
    policy: str
    scale: float = 1.0
    offset: float = 0.0


def convert_between(
    robot: str, policy: str, calibrated: tuple[float, float] | None = None
) -> UnitConversion:
    """
    Return the conversion between two units. `calibrated` are the robot's numbers at the lowest and
    at the highest number of a normalised range. Raises ValueError with a readable text.
    """
    if robot == policy:
        if calibrated:
            raise ValueError(f'calibrated is only for a policy in {" or ".join(RANGES)}')
        return UnitConversion(robot, policy)
    if policy in RANGES:
        return _normalised(robot, policy, calibrated)
    if calibrated:
        raise ValueError(f'calibrated is only for a policy in {" or ".join(RANGES)}')
    if robot in RANGES or KINDS[robot][0] != KINDS[policy][0]:
        raise ValueError(f'{policy} cannot be converted to {robot}')
    return UnitConversion(robot, policy, KINDS[policy][1] / KINDS[robot][1])


def _normalised(robot: str, policy: str, calibrated: tuple[float, float] | None) -> UnitConversion:
    if robot in RANGES:
        raise ValueError(f'{policy} cannot be converted to {robot}')
    if calibrated is None or calibrated[0] == calibrated[1]:
        low, high = RANGES[policy]
        raise ValueError(
            f'{policy} needs calibrated: [at {low:g}, at {high:g}], two different numbers in '
            f'{robot} from the calibration of the arm'
        )
    low, high = RANGES[policy]
    scale = (calibrated[1] - calibrated[0]) / (high - low)
    return UnitConversion(robot, policy, scale, calibrated[0] - scale * low)


@dataclass(frozen=True, slots=True, eq=False)
class UnitConversions:
    """The units of several values in order; None: undeclared, no conversion."""

    declared: tuple[UnitConversion | None, ...] = ()
    _scale: Float64Array | None = field(init=False, default=None)
    _offset: Float64Array | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        pairs = [(unit.scale, unit.offset) if unit else (1.0, 0.0) for unit in self.declared]
        if any(pair != (1.0, 0.0) for pair in pairs):
            scale, offset = np.array(pairs, np.float64).T
            # frozen dataclass; computed once
            object.__setattr__(self, '_scale', scale)
            object.__setattr__(self, '_offset', offset)

    @property
    def converts(self) -> bool:
        return self._scale is not None

    def to_robot(self, values: FloatArray) -> FloatArray:
        """
        Convert values, or rows of them, to the robot's units: the same array if no unit is
        declared, otherwise float64, so that the conversion back is lossless.
        """
        if self._scale is None or self._offset is None or not values.size:
            return values
        return values * self._scale + self._offset

    def to_policy(self, values: FloatArray) -> FloatArray:
        """Convert values, or rows of them, to the policy's units; see `to_robot`."""
        if self._scale is None or self._offset is None or not values.size:
            return values
        return (values - self._offset) / self._scale


SAME_UNITS = UnitConversions()


def limits_for_policy(limits: Iterable[ActionLimit], units: UnitConversions) -> list[ActionLimit]:
    """Return limits in the policy's units."""
    pairs = zip(limits, units.declared, strict=True)
    return [_limit_for_policy(limit, unit) if unit else limit for limit, unit in pairs]


def _limit_for_policy(limit: ActionLimit, unit: UnitConversion) -> ActionLimit:
    ends = sorted((bound - unit.offset) / unit.scale for bound in (limit.low, limit.high))
    size = abs(unit.scale)
    return replace(
        limit,
        low=ends[0],
        high=ends[1],
        max_step=limit.max_step / size,
        max_velocity=limit.max_velocity / size,
        max_acceleration=limit.max_acceleration / size,
        max_lead=limit.max_lead / size,
    )


def executed_for_policy(executed: ExecutionReport, units: UnitConversions) -> ExecutionReport:
    """Return the execution report with its rows in the policy's units."""
    if not units.converts or not executed.runs:
        return executed
    runs = tuple(
        replace(run, rows=units.to_policy(run.rows).astype(np.float32)) for run in executed.runs
    )
    return replace(executed, runs=runs)
