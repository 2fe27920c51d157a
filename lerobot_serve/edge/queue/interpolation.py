# SPDX-License-Identifier: Apache-2.0
"""
Interpolate several commands per action, for a command rate above the policy rate.

The first action is emitted alone; each later one is reached in equal steps, the last of which is
the action itself. The tick thread owns it.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.arrays import Float64Array, is_finite


class Interpolator:
    """Feed an action when `needs_action`, then take a step each tick."""

    def __init__(self, multiplier: int) -> None:
        """Raise ValueError for a multiplier below 1."""
        if multiplier < 1:
            raise ValueError(f'multiplier must be 1 or more steps per action, got {multiplier}')
        self._multiplier = multiplier
        self.reset()

    def reset(self) -> None:
        """Reset: the next action is emitted alone."""
        self._start: Float64Array | None = None
        self._end: Float64Array | None = None
        self._steps_left = 0

    @property
    def needs_action(self) -> bool:
        return self._steps_left == 0

    def feed(self, action: Float64Array) -> None:
        """Start the steps from the previous action to this one."""
        self._start, self._end = self._end, action
        self._steps_left = 1 if self._start is None else self._multiplier

    @property
    def is_interpolating(self) -> bool:
        """Whether the next step is a mixture of two actions."""
        return self._steps_left > 1

    def drop_previous(self) -> None:
        """Make each remaining step the action itself."""
        self._start = self._end

    def take(self) -> Float64Array | None:
        """
        Return the next step, None if an action is needed.

        If one of the two actions is not finite, each step is the later one unchanged, for the cage
        to check.
        """
        if self.needs_action:
            return None
        self._steps_left -= 1
        start, end = self._start, self._end
        if start is None or end is None or not self._steps_left:
            return end
        if not (is_finite(start) and is_finite(end)):
            return end
        # weighted rather than start + part * (end - start), which can overflow
        left, total = self._steps_left, self._multiplier
        step = left / total * start + (total - left) / total * end
        # rounding must not exceed the range between the two actions
        return np.clip(step, np.minimum(start, end), np.maximum(start, end))
