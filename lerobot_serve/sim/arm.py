# SPDX-License-Identifier: Apache-2.0
"""
A simulated arm with the joints of an SO-100.

Seen from above it is a planar arm of two links: shoulder_pan turns the first, elbow_flex the
second. The other joints move like real ones but do not change where the hand is.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import TypeAlias

import numpy as np

from lerobot_serve.arrays import Float64Array, FloatArray

JOINT_NAMES = (
    'shoulder_pan',
    'shoulder_lift',
    'elbow_flex',
    'wrist_flex',
    'wrist_roll',
    'gripper',
)
SHOULDER, ELBOW = JOINT_NAMES.index('shoulder_pan'), JOINT_NAMES.index('elbow_flex')
LOW_RAD = np.array((-1.92, -1.75, -2.40, -1.66, -2.79, -0.17))
HIGH_RAD = np.array((1.92, 1.75, 2.40, 1.66, 2.79, 1.75))
HOME_RAD = (-0.6, 0.0, 1.2, 0.0, 0.0, 0.0)

UPPER_LINK_M, FORE_LINK_M = 0.20, 0.18
MAX_SPEED_RAD_S = 2.0
RESPONSE_S = 0.05

# one angle per joint [rad]
JointPositions: TypeAlias = Sequence[float] | FloatArray


def elbow_xy(positions: JointPositions) -> tuple[float, float]:
    """Return where the first link ends, in metres from the base. Any thread."""
    pan = positions[SHOULDER]
    return UPPER_LINK_M * math.cos(pan), UPPER_LINK_M * math.sin(pan)


def forearm_heading_rad(positions: JointPositions) -> float:
    """Return the direction of the second link, from the x axis towards the y axis. Any thread."""
    return float(positions[SHOULDER] + positions[ELBOW])


def hand_xy(positions: JointPositions) -> tuple[float, float]:
    """Return where the second link ends, in metres from the base. Any thread."""
    x_m, y_m = elbow_xy(positions)
    heading_rad = forearm_heading_rad(positions)
    return (x_m + FORE_LINK_M * math.cos(heading_rad), y_m + FORE_LINK_M * math.sin(heading_rad))


class Arm:
    """
    The arm: it follows its last good command, no faster than MAX_SPEED_RAD_S, inside its limits.

    Belongs to one thread at a time.
    """

    def __init__(self, positions: Sequence[float] = HOME_RAD) -> None:
        self._positions = np.clip(np.array(positions, float), LOW_RAD, HIGH_RAD)
        self._target = self._positions.copy()
        self.refused_commands = 0

    @property
    def positions(self) -> Float64Array:
        """The joint positions in radians, a copy."""
        return self._positions.copy()

    def hand(self) -> tuple[float, float]:
        """Return where the hand is: x, y in metres from the base."""
        return hand_xy(self._positions)

    def step(self, command: JointPositions | None, dt_s: float) -> None:
        """
        Move for `dt_s` towards `command` (radians); None keeps the last one.

        A command of the wrong length or with a value that is not finite is refused and counted:
        the arm keeps its last target. Raises ValueError for a negative or not finite time step.
        """
        if not (math.isfinite(dt_s) and dt_s >= 0):
            raise ValueError(f'dt_s must be finite and at least 0, got {dt_s}')
        if command is not None:
            self._take(np.asarray(command, float))
        reach_rad = MAX_SPEED_RAD_S * dt_s
        wanted = (self._target - self._positions) * -math.expm1(-dt_s / RESPONSE_S)
        moved = self._positions + np.clip(wanted, -reach_rad, reach_rad)
        self._positions = np.clip(moved, LOW_RAD, HIGH_RAD)

    def _take(self, command: Float64Array) -> None:
        if command.shape != self._target.shape or not np.isfinite(command).all():
            self.refused_commands += 1
            return
        self._target = np.clip(command, LOW_RAD, HIGH_RAD)
