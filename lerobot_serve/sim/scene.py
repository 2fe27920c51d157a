# SPDX-License-Identifier: Apache-2.0
"""
The task of the simulated arm: move the hand to a red disc within reach and hold it there.

Coordinates are in the frame of the arm: metres from its base, x ahead, y to the left.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

import numpy as np

from lerobot_serve.arrays import Float64Array, Uint8Array
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import Arm, WRIST
from lerobot_serve.sim.expert import expert_chunk

REACH_M = 0.02
HOLD_S = 0.3
ATTEMPT_S = 8.0
# both elbow solutions reach a target within these bounds
TARGET_NEAR_M, TARGET_FAR_M, TARGET_SIDE_RAD = 0.18, 0.34, 0.85
TARGET_APART_M = 0.06
LEADER_STEP_S = 0.01
# tolerance for sums of time steps
ROUNDING_S = 1e-9


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt."""

    success: bool
    duration_s: float
    distance_m: float


class ReachScene:
    """
    Runs consecutive attempts; the caller moves the arm.

    One thread at a time. A target depends only on the generator and on the position of the hand
    when the target is drawn.
    """

    def __init__(
        self,
        arm: Arm,
        generator: np.random.Generator,
        *,
        attempt_timeout_s: float = ATTEMPT_S,
        reach_m: float = REACH_M,
        wrist_shift_m: float = 0.0,
    ) -> None:
        self.arm, self._wrist_shift_m = arm, wrist_shift_m
        self.attempt_timeout_s, self.reach_m = attempt_timeout_s, reach_m
        self._generator = generator
        self._elapsed_s = self._held_s = 0.0
        self._begin_attempt()

    @property
    def distance_m(self) -> float:
        """The distance of the hand to the target [m]."""
        return math.dist(self.arm.hand(), self.target_xy)

    def step(self, dt_s: float) -> AttemptResult | None:
        """Advance by `dt_s`; at the end of an attempt return its result and set a new target."""
        distance_m = self.distance_m
        self._elapsed_s += dt_s
        self._held_s = self._held_s + dt_s if distance_m <= self.reach_m else 0.0
        success = self._held_s > HOLD_S - ROUNDING_S
        if not success and self._elapsed_s < self.attempt_timeout_s - ROUNDING_S:
            return None
        outcome = AttemptResult(success, self._elapsed_s, distance_m)
        self._begin_attempt()
        return outcome

    def render(self, name: str, height: int, width: int) -> Uint8Array:
        """Return the image of a camera, height x width x 3, RGB. Raises ValueError."""
        return cameras.render(
            name,
            height,
            width,
            self.arm.positions,
            self.target_xy,
            wrist_shift_m=self._wrist_shift_m,
        )

    def leader_pose(self, lead_s: float, wrist_offset_rad: float = 0.0) -> Float64Array:
        """
        Return where the expert would have the arm after `lead_s`, on its way to the target, with
        its wrist turned by `wrist_offset_rad`.
        """
        rows = max(1, round(lead_s / LEADER_STEP_S))
        positions = self.arm.positions
        positions[WRIST] -= wrist_offset_rad
        path = expert_chunk(positions, self.target_xy, rows, LEADER_STEP_S)
        pose: Float64Array = path[-1].astype(np.float64)
        pose[WRIST] += wrist_offset_rad
        return pose

    def _begin_attempt(self) -> None:
        self._elapsed_s = self._held_s = 0.0
        self.target_xy = draw_target(self._generator)
        while self.distance_m < TARGET_APART_M:
            self.target_xy = draw_target(self._generator)


def draw_target(generator: np.random.Generator) -> tuple[float, float]:
    """Return a reachable position, uniformly distributed over the area. Any thread."""
    radius_m = math.sqrt(generator.uniform(TARGET_NEAR_M**2, TARGET_FAR_M**2))
    angle_rad = generator.uniform(-TARGET_SIDE_RAD, TARGET_SIDE_RAD)
    return radius_m * math.cos(angle_rad), radius_m * math.sin(angle_rad)
