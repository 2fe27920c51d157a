# SPDX-License-Identifier: Apache-2.0
"""
Simulate an arm with the joints of an SO-100.

The arm is planar with two links: shoulder_pan turns the first, elbow_flex the second. The other
joints move but do not change the position of the hand.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import TypeAlias

import numpy as np

from lerobot_serve.arrays import Float64Array, FloatArray, is_finite

JOINT_NAMES = (
    'shoulder_pan',
    'shoulder_lift',
    'elbow_flex',
    'wrist_flex',
    'wrist_roll',
    'gripper',
)
SHOULDER, ELBOW = JOINT_NAMES.index('shoulder_pan'), JOINT_NAMES.index('elbow_flex')
WRIST = JOINT_NAMES.index('wrist_roll')
LOW_RAD = np.array((-1.92, -1.75, -2.40, -1.66, -2.79, -0.17))
HIGH_RAD = np.array((1.92, 1.75, 2.40, 1.66, 2.79, 1.75))
HOME_RAD = (-0.6, 0.0, 1.2, 0.0, 0.0, 0.0)

UPPER_LINK_M, FORE_LINK_M = 0.20, 0.18
MAX_SPEED_RAD_S = 2.0
RESPONSE_S = 0.05

# one angle per joint [rad]
JointPositions: TypeAlias = Sequence[float] | FloatArray


def elbow_xy(positions: JointPositions) -> tuple[float, float]:
    """Return the position of the elbow [m] from the base. Any thread."""
    pan = positions[SHOULDER]
    return UPPER_LINK_M * math.cos(pan), UPPER_LINK_M * math.sin(pan)


def forearm_heading_rad(positions: JointPositions) -> float:
    """Return the angle of the second link, from the x axis towards the y axis. Any thread."""
    return float(positions[SHOULDER] + positions[ELBOW])


def hand_xy(positions: JointPositions) -> tuple[float, float]:
    """Return the position of the hand [m] from the base. Any thread."""
    x_m, y_m = elbow_xy(positions)
    heading_rad = forearm_heading_rad(positions)
    return (x_m + FORE_LINK_M * math.cos(heading_rad), y_m + FORE_LINK_M * math.sin(heading_rad))


class Arm:
    """
    The arm follows its last valid command within its limits, at most with MAX_SPEED_RAD_S.

    One thread at a time.
    """

    def __init__(self, positions: Sequence[float] = HOME_RAD) -> None:
        self._positions = np.clip(np.array(positions, float), LOW_RAD, HIGH_RAD)
        self._target = self._positions.copy()
        self.refused_commands = 0

    @property
    def positions(self) -> Float64Array:
        """A copy of the joint positions [rad]."""
        return self._positions.copy()

    def hand(self) -> tuple[float, float]:
        """Return the position of the hand: x, y [m] from the base."""
        return hand_xy(self._positions)

    def step(self, command: JointPositions | None, dt_s: float) -> None:
        """
        Move for `dt_s` towards `command` [rad]; None keeps the last target.

        A command with a wrong length or a non-finite value is refused and counted; the arm keeps
        its last target. Raises ValueError for a negative or non-finite time step.
        """
        if not (math.isfinite(dt_s) and dt_s >= 0):
            raise ValueError(f'dt_s must be finite and at least 0, got {dt_s}')
        if command is not None:
            self._set_target(np.asarray(command, float))
        reach_rad = MAX_SPEED_RAD_S * dt_s
        wanted = (self._target - self._positions) * -math.expm1(-dt_s / RESPONSE_S)
        moved = self._positions + np.clip(wanted, -reach_rad, reach_rad)
        self._positions = np.clip(moved, LOW_RAD, HIGH_RAD)

    def _set_target(self, command: Float64Array) -> None:
        if command.shape != self._target.shape or not is_finite(command):
            self.refused_commands += 1
            return
        self._target = np.clip(command, LOW_RAD, HIGH_RAD)
