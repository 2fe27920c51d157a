# SPDX-License-Identifier: Apache-2.0
"""Actions of a robot with their limits, and interlocks. Plain data; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import inf


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
