# SPDX-License-Identifier: Apache-2.0
"""
Check that a policy's action range fits the robot's limits, to detect mismatched units.

A policy in degrees on a robot in radians drives every joint to its limits, with each command
inside them. The range of the training data reveals this before any motion. Pure functions; any
thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.contract.services.action_range import ActionRange
from lerobot_serve.edge.robot.description import RobotDescription

# reach of a range from the middle of the limits, relative to the limits
GROSS_REACH, WIDE_REACH = 10.0, 1.5
# all ranges span at most this share of the limits: a policy in rad, a robot in deg
TINY_SPAN = 1 / 20
# LeRobot's normalised range, with tolerance for values outside the calibration
NORMALISED, NEARLY_ZERO = 101.0, -1.0
SHOWN = 6


class UnitFit(Enum):
    """Fit of a policy's range; GROSS is refused unless the units of the action are declared."""

    FITS = 'fits'
    DOUBTFUL = 'doubtful'
    GROSS = 'gross'


@dataclass(frozen=True, slots=True)
class UnitCheck:
    """Result of the check; `text` is empty if the ranges fit."""

    fit: UnitFit
    text: str = ''


@dataclass(frozen=True, slots=True)
class _Compared:
    """One action: the policy's range in its own and in the robot's unit, and its reach."""

    action: ActionLimit
    low: float
    high: float
    robot_low: float
    robot_high: float
    is_declared: bool

    @property
    def reach(self) -> float:
        """Ratio of the range to the limits: 1 if they are equal, 57.3 for degrees on radians."""
        middle = (self.action.low + self.action.high) / 2
        furthest = max(abs(self.robot_low - middle), abs(self.robot_high - middle))
        return furthest / ((self.action.high - self.action.low) / 2)

    @property
    def span(self) -> float:
        return (self.robot_high - self.robot_low) / (self.action.high - self.action.low)


def check_units(robot: RobotDescription, policy: ActionRange | None) -> UnitCheck:
    """
    Compare a policy's range with the robot's limits; the text names the likely unit. An unknown
    range fits.
    """
    if policy is None:
        return UnitCheck(UnitFit.FITS)
    if len(policy.low) != len(robot.actions):
        text = f'the policy declares ranges for {len(policy.low)} actions, the robot has '
        return UnitCheck(UnitFit.DOUBTFUL, f'{text}{len(robot.actions)}: units not compared')
    compared = _compare(robot, policy)
    gross = [each for each in compared if each.reach >= GROSS_REACH]
    if gross:
        all_declared = all(each.is_declared for each in gross)
        return UnitCheck(
            UnitFit.DOUBTFUL if all_declared else UnitFit.GROSS, _describe_gross(gross)
        )
    if compared and all(each.span <= TINY_SPAN for each in compared):
        return UnitCheck(UnitFit.DOUBTFUL, _describe_tiny(compared))
    wide = [each for each in compared if each.reach >= WIDE_REACH]
    if wide:
        text = f'the policy range extends beyond the limits of the robot: {_shown(wide)}; '
        return UnitCheck(UnitFit.DOUBTFUL, f'{text}its actions will be clamped there')
    return UnitCheck(UnitFit.FITS)


def _compare(robot: RobotDescription, policy: ActionRange) -> list[_Compared]:
    """Compare the positions; velocity limits are often far below the training data."""
    units = robot.action_units
    ends = np.array((policy.low, policy.high), np.float64)
    in_robot = np.sort(units.to_robot(ends), axis=0)
    return [
        _Compared(
            action,
            low=float(ends[0, i]),
            high=float(ends[1, i]),
            robot_low=float(in_robot[0, i]),
            robot_high=float(in_robot[1, i]),
            is_declared=unit is not None,
        )
        for i, (action, unit) in enumerate(zip(robot.actions, units.declared, strict=True))
        if action.motion is Motion.POSITION
    ]


def _describe_gross(gross: list[_Compared]) -> str:
    undeclared = [each for each in gross if not each.is_declared]
    text = f'the range of the policy is far beyond the limits of the robot: {_shown(gross)}; '
    if not undeclared:
        return text + (
            'the units of these actions are declared; if they are right, the limits are far '
            'narrower than what the policy was trained for, and most actions will be clamped'
        )
    kinds = {each.action.name: _likely(each, undeclared) for each in undeclared}
    likely = ' or '.join(dict.fromkeys(kinds.values()))
    first, unit = next(iter(kinds.items()))
    return text + (
        f'this looks like {likely}. Declare the units in the robot file, for example '
        f'`units: {{{first}: {{robot: rad, policy: {unit.split(" or ")[0]}}}}}`, or correct its '
        'limits'
    )


def _likely(one: _Compared, gross: list[_Compared]) -> str:
    """Return the likely unit of the numbers of an action."""
    if max(-one.low, one.high) > NORMALISED:
        return 'deg'
    if one.low >= NEARLY_ZERO:
        return 'range_0_100'
    beyond = any(max(-each.low, each.high) > NORMALISED for each in gross)
    return 'deg' if beyond else 'deg or range_m100_100'


def _describe_tiny(compared: list[_Compared]) -> str:
    return (
        f'the range of the policy is a small part of the limits of the robot: {_shown(compared)}; '
        'this looks like a policy in rad on a robot in deg: declare the units in the robot file'
    )


def _shown(compared: list[_Compared]) -> str:
    parts = [
        f'{each.action.name} {each.robot_low:.4g} to {each.robot_high:.4g}, limits '
        f'{each.action.low:g} to {each.action.high:g}'
        for each in compared[:SHOWN]
    ]
    more = len(compared) - SHOWN
    return ' · '.join(parts) + (f' · {more} more' if more > 0 else '')
