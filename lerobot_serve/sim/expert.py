# SPDX-License-Identifier: Apache-2.0
"""The expert policy of the reaching task: joint targets by inverse kinematics."""

from __future__ import annotations

import math

import numpy as np

from lerobot_serve.arrays import Float32Array, Float64Array
from lerobot_serve.sim.arm import (
    ELBOW,
    FORE_LINK_M,
    HIGH_RAD,
    JOINT_NAMES,
    JointPositions,
    LOW_RAD,
    MAX_SPEED_RAD_S,
    SHOULDER,
    UPPER_LINK_M,
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
