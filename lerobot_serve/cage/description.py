# SPDX-License-Identifier: Apache-2.0
"""
Plain data of the cage: actions of a robot with their limits, interlocks, the last command as input
and its result for the next. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from math import inf
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray


class Motion(Enum):
    """Kind of an action value."""

    POSITION = 'position'
    VELOCITY = 'velocity'


@dataclass(frozen=True, slots=True)
class ActionLimit:
    """
    One action, its joint, and its limits.

    The number is in the joint's unit (rad or m; a second less for Motion.VELOCITY), and `max_step`
    bounds its change in one control step. `max_velocity` and `max_acceleration` bound the joint's
    motion, for positions and velocities alike. `max_lead` is how far a position may be ahead of
    the measured one.
    """

    name: str
    joint: str
    motion: Motion
    low: float
    high: float
    max_step: float
    max_velocity: float = inf
    max_acceleration: float = inf
    max_lead: float = inf


@dataclass(frozen=True, slots=True)
class Interlock:
    """
    While a value of the state is below or above a bound, these actions are forced.

    `immediate` exempts the forced values from max_step, max_acceleration and max_lead; positions
    and velocities stay bounded.
    """

    name: str
    state: str
    below: float | None
    above: float | None
    then: dict[str, float]
    immediate: bool = False


# one value per joint
JointValues: TypeAlias = NDArray[np.float64]


class Verdict(IntEnum):
    """ExecutedAction.verdict."""

    PASS = 0
    CLAMPED = 1
    HELD = 2
    STOPPED = 3


@dataclass(frozen=True, slots=True, eq=False)
class LastCommand:
    """
    The last command in action order, and its change per second.

    The change of a velocity is not used: its limits bound only the step.
    """

    position: JointValues
    velocity: JointValues

    def after(self, command: JointValues | None, step_s: float) -> LastCommand:
        """Return the state after `command`; a step without a command is one without motion."""
        if command is None:
            return LastCommand(self.position, np.zeros(len(self.position)))
        return LastCommand(command, (command - self.position) / step_s)


@dataclass(frozen=True, slots=True, eq=False)
class CageResult:
    """
    Result of a check. A command is sent for any verdict; None: nothing is sent.

    reason  text that names the joint and any immediate interlock; else empty for PASS
    cause   the same as one word, for counters
    """

    verdict: Verdict
    command: JointValues | None
    reason: str = ''
    cause: str = ''


def is_numeric_array(value: object, shape: tuple[int, ...]) -> TypeGuard[JointValues]:
    """Return whether this is an array of that shape and of real numbers. Never raises."""
    return isinstance(value, np.ndarray) and value.dtype.kind in 'fiu' and value.shape == shape
