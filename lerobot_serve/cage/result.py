# SPDX-License-Identifier: Apache-2.0
"""The last command as input of the cage, and its result for the next. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

# one value per joint
JointValues: TypeAlias = NDArray[np.float64]


class Verdict(IntEnum):
    """ExecutedAction.verdict."""

    PASS = 0
    CLAMPED = 1
    HELD = 2
    STOPPED = 3


@dataclass(frozen=True, slots=True, eq=False)
class LastCommand:
    """
    The last command in action order, and its change per second.

    The change of a velocity is not used: its limits bound only the step.
    """

    position: JointValues
    velocity: JointValues

    def after(self, command: JointValues | None, step_s: float) -> LastCommand:
        """Return the state after `command`; a step without a command is one without motion."""
        if command is None:
            return LastCommand(self.position, np.zeros(len(self.position)))
        return LastCommand(command, (command - self.position) / step_s)


@dataclass(frozen=True, slots=True, eq=False)
class CageResult:
    """
    Result of a check. A command is sent for any verdict; None: nothing is sent.

    reason  text that names the joint and any immediate interlock; else empty for PASS
    cause   the same as one word, for counters
    """

    verdict: Verdict
    command: JointValues | None
    reason: str = ''
    cause: str = ''


def is_numeric_array(value: object, shape: tuple[int, ...]) -> TypeGuard[JointValues]:
    """Return whether this is an array of that shape and of real numbers. Never raises."""
    return isinstance(value, np.ndarray) and value.dtype.kind in 'fiu' and value.shape == shape
