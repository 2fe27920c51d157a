# SPDX-License-Identifier: Apache-2.0
"""
Start position: the measured position that the first command is bounded from.

One misread sample must not become the start. A start needs several consecutive new samples that
differ by at most AGREE_STEPS steps or AGREE_SHARE of the joint's range, whichever is less, but at
least one step: a robot moved by hand, or a sensor that jumps, has no start.

A joint may be outside its limits by a share of its range, since real arms rest slightly outside;
further out the sensor, the unit or the file is wrong and nothing is commanded. Velocities are not
measured: they start at rest. Plain; the tick thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.result import JointValues, LastCommand

AGREE_SHARE, AGREE_STEPS = 0.02, 10


class StartPosition:
    """Collects samples until enough agree. `tolerance_share` is a share of a joint's range."""

    def __init__(self, limits: MotionLimits, *, samples: int, tolerance_share: float) -> None:
        if samples < 1 or not tolerance_share >= 0:
            raise ValueError(
                f'samples must be >= 1 and tolerance_share >= 0, got {samples}, {tolerance_share}'
            )
        self._limits, self._samples = limits, samples
        self._range = np.maximum(limits.high - limits.low, 0.0)
        steps = limits.max_step
        self._apart = np.maximum(steps, np.minimum(AGREE_SHARE * self._range, AGREE_STEPS * steps))
        with np.errstate(invalid='ignore'):
            self._outside = np.nan_to_num(tolerance_share * self._range, nan=0.0)
        self._newest: JointValues | None = None
        self._agreed = 0
        # the joint that differed last since the count started, for the text
        self._differed = ''

    def add_sample(self, measured: JointValues | None) -> None:
        """Process a new measurement."""
        known = self._limits.start(measured)
        if known is None:
            self._newest, self._agreed = None, 0
            return
        is_other = self._newest is None or self._differ(known.position, self._newest)
        self._agreed = 1 if is_other else self._agreed + 1
        self._newest = known.position

    def _differ(self, position: JointValues, previous: JointValues) -> bool:
        """Return whether a joint is too far from its previous sample."""
        too_far = abs(position - previous) - self._apart
        joint = int(too_far.argmax())
        differs = bool(too_far[joint] > 0)
        if differs:
            bound = self._apart[joint]
            self._differed = f'; {self._limits.names[joint]} changed by more than {bound:g}'
        return differs

    def reset(self) -> None:
        """Restart the count of samples."""
        self._newest, self._agreed, self._differed = None, 0, ''

    @property
    def agreed(self) -> JointValues | None:
        """The measured position, None until enough samples agree."""
        return self._newest if self._agreed >= self._samples else None

    def start_command(self) -> LastCommand | None:
        """Return the start of a first command, None while unknown."""
        if self._limits.is_velocity.all():
            return self._limits.start(None)
        here = self.agreed
        return None if here is None else LastCommand(here, np.zeros(here.shape))

    def blocked_reason(self) -> str:
        """Return why motion may not start; empty if it may."""
        last = self.start_command()
        if last is None:
            if self._newest is None:
                return 'position unknown: no measured state'
            # without the count, so that the reason stays the same
            return f'waiting for {self._samples} consistent samples{self._differed}'
        limits = self._limits
        too_low = limits.low - self._outside - last.position
        too_far = np.maximum(too_low, last.position - limits.high - self._outside)
        too_far = np.where(limits.is_velocity, 0.0, too_far)
        if not (too_far > 0).any():
            return ''
        joint = int(too_far.argmax())
        return (
            f'{limits.names[joint]} is measured at {last.position[joint]:g}, its limits are '
            f'{limits.low[joint]:g} to {limits.high[joint]:g} with a tolerance of '
            f'{self._outside[joint]:g} (start_tolerance); check sensor, unit and limits, or move '
            'it within the limits by hand'
        )
