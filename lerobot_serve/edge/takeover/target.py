# SPDX-License-Identifier: Apache-2.0
"""The target of a person: positions and velocities, or rates. Immutable; any thread."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lerobot_serve.arrays import BoolArray, Float64Array


class PersonTarget(NamedTuple):
    """One finite value for each action; `is_rate`: positions change by these each second."""

    values: Float64Array
    is_rate: bool = False

    def at(self, position: Float64Array, is_velocity: BoolArray, step_s: float) -> Float64Array:
        """Return the target of a step from the `position` commanded last."""
        if not self.is_rate:
            return self.values
        return np.where(is_velocity, self.values, position + self.values * step_s)
