# SPDX-License-Identifier: Apache-2.0
"""Poses of the simulated arm within its limits, and places of its targets."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from lerobot_serve.sim.arm import HIGH_RAD, LOW_RAD
from lerobot_serve.sim.scene import TARGET_FAR_M, TARGET_NEAR_M, TARGET_SIDE_RAD

poses = st.tuples(*(st.floats(low, high) for low, high in zip(LOW_RAD, HIGH_RAD, strict=True)))
places = st.builds(
    lambda radius_m, angle_rad: (
        radius_m * math.cos(angle_rad),
        radius_m * math.sin(angle_rad),
    ),
    st.floats(TARGET_NEAR_M, TARGET_FAR_M),
    st.floats(-TARGET_SIDE_RAD, TARGET_SIDE_RAD),
)
