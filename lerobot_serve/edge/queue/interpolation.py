"""
Several commands for each action, for a robot that is commanded faster than its policy acts.

The first action is emitted alone; each later one is reached in equal steps, the last of which is
the action itself. The tick thread owns it.
"""

from __future__ import annotations

import numpy as np


class Interpolator:
    """Feed it an action whenever it wants one, then take a step each tick."""

    def __init__(self, multiplier: int) -> None:
        """Raise ValueError unless there is at least one step for an action."""
        if multiplier < 1:
            raise ValueError(f'the multiplier must be 1 or more steps an action, got {multiplier}')
        self._multiplier = multiplier
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next action is a first one again."""
        self._start: np.ndarray | None = None
        self._end: np.ndarray | None = None
        self._steps_left = 0

    @property
    def needs_action(self) -> bool:
        return self._steps_left == 0

    def feed(self, action: np.ndarray) -> None:
        """Begin the steps from the action before to this one."""
        self._start, self._end = self._end, action
        self._steps_left = 1 if self._start is None else self._multiplier

    @property
    def is_interpolating(self) -> bool:
        """Tell whether the step to be taken next is a mixture of two actions."""
        return self._steps_left > 1

    def drop_previous(self) -> None:
        """Let each step that is left be the action itself, whatever it began from."""
        self._start = self._end

    def take(self) -> np.ndarray | None:
        """
        Return the next step, None when an action is wanted.

        Between two actions of which one is not finite there is nothing to be found: each step is
        then the later of them as it is, for the cage to judge.
        """
        if self.needs_action:
            return None
        self._steps_left -= 1
        start, end = self._start, self._end
        if not self._steps_left or not (np.isfinite(start).all() and np.isfinite(end).all()):
            return end
        # weighted rather than start + part * (end - start), which can overflow
        left, total = self._steps_left, self._multiplier
        step = left / total * start + (total - left) / total * end
        # rounding must not lead beyond the two actions
        return np.clip(step, np.minimum(start, end), np.maximum(start, end))
