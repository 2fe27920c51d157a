# SPDX-License-Identifier: Apache-2.0
"""
The task of the simulated arm: move the hand to a red disc within reach and hold it there; and the
expert policy of the task: joint targets by inverse kinematics.

Coordinates are in the frame of the arm: metres from its base, x ahead, y to the left.
"""

from __future__ import annotations

from dataclasses import dataclass
import math

import numpy as np

from lerobot_serve.arrays import Float32Array, Float64Array, Uint8Array
from lerobot_serve.sim import cameras
from lerobot_serve.sim.arm import (
    Arm,
    ELBOW,
    FORE_LINK_M,
    HIGH_RAD,
    JOINT_NAMES,
    JointPositions,
    LOW_RAD,
    MAX_SPEED_RAD_S,
    SHOULDER,
    UPPER_LINK_M,
    WRIST,
)

FloatArray = Float64Array | Float32Array
SPEED_RAD_S = 0.6 * MAX_SPEED_RAD_S
SETTLE_S = 0.15
# near a straight arm the expert prefers one side: a policy that averages both sides stays straight
STRAIGHT_RAD = 0.3


def inverse_kinematics(positions: JointPositions, target_xy: tuple[float, float]) -> Float64Array:
    """
    Return the joint positions with the hand at `target_xy` [m]; the other joints are 0.

    Of the two elbow solutions, return the nearer one within the limits; for a target out of reach,
    the nearest pose in its direction. Any thread.
    """
    x_m, y_m = target_xy
    reach = UPPER_LINK_M**2 + FORE_LINK_M**2
    cosine = (x_m**2 + y_m**2 - reach) / (2 * UPPER_LINK_M * FORE_LINK_M)
    bend_rad = math.acos(min(1.0, max(-1.0, cosine)))
    near = 1 if positions[ELBOW] > -STRAIGHT_RAD else -1
    poses = [_pose(x_m, y_m, side * bend_rad) for side in (near, -near)]
    inside = [pose for pose in poses if ((pose >= LOW_RAD) & (pose <= HIGH_RAD)).all()]
    return (inside or [np.clip(poses[0], LOW_RAD, HIGH_RAD)])[0]


def _pose(x_m: float, y_m: float, elbow_rad: float) -> Float64Array:
    along_m = UPPER_LINK_M + FORE_LINK_M * math.cos(elbow_rad)
    pan_rad = math.atan2(y_m, x_m) - math.atan2(FORE_LINK_M * math.sin(elbow_rad), along_m)
    pose = np.zeros(len(JOINT_NAMES))
    pose[SHOULDER] = math.remainder(pan_rad, math.tau)
    pose[ELBOW] = elbow_rad
    return pose


def expert_chunk(
    positions: JointPositions, target_xy: tuple[float, float], rows: int, dt_s: float
) -> Float32Array:
    """
    Return joint targets that move the hand to `target_xy`: rows x 6, float32 [rad], `dt_s` apart.

    The fastest joint is limited to SPEED_RAD_S and all settle together. Each row depends only on
    the row before, so that replanning during the motion gives the same path. Any thread.
    """
    goal, pose = inverse_kinematics(positions, target_xy), np.array(positions, float)
    chunk = np.empty((rows, len(pose)), np.float32)
    share = -math.expm1(-dt_s / SETTLE_S)
    for row in chunk:
        move = (goal - pose) * share
        move *= min(1.0, SPEED_RAD_S * dt_s / max(np.abs(move).max(), 1e-12))
        pose = pose + move
        row[:] = pose
    return chunk


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
