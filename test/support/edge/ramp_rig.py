# SPDX-License-Identifier: Apache-2.0
"""Joints for ramps, and a bound with room for rounding."""

from __future__ import annotations

from hypothesis import strategies as st
import numpy as np

from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion
from lerobot_serve.edge.control.rungs import top_speed

ARM = ActionLimit('arm.pos', 'arm', Motion.POSITION, -100.0, 100.0, 0.1, 2.0, 8.0)
FREE = ActionLimit('free.pos', 'free', Motion.POSITION, -100.0, 100.0, 0.1)
WHEEL = ActionLimit('wheel', 'linear.x', Motion.VELOCITY, -0.5, 0.8, 0.1, max_acceleration=4.0)
SPEEDS = st.floats(-1, 1)
rates = st.sampled_from([1 / 10, 1 / 30, 1 / 50, 1 / 200])


def begin(limit: ActionLimit, share: float, at: float, step_s: float) -> LastCommand:
    """Return a command in motion, at a share of its top speed."""
    speed = share * top_speed(limit, step_s)
    if limit.motion is Motion.VELOCITY:
        return LastCommand(np.array([np.clip(speed, limit.low, limit.high)]), np.zeros(1))
    return LastCommand(np.array([at]), np.array([speed]))


def near(bound: float, *scales: float) -> float:
    """Return a bound with room for the rounding of differences of numbers of that size."""
    return bound * (1 + 1e-6) + 1e-12 * max([1.0, *map(abs, scales)])
