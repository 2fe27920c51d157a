"""
Where a robot that was not commanded stands, before its first command is bounded from there.

One misread sample must not become the place from which limits count: the robot would be driven
from where it never was. A start needs several new samples, one after the other, none of which is
further from the one before than AGREE_STEPS steps or AGREE_SHARE of the joint's range, whichever
is less, but a step at least: a robot that is moved by hand, or a sensor that jumps, has no start.

A joint may stand outside its limits by a share of its range, since real arms are put down a little
outside; further out the sensor, the unit or the file is wrong and nothing is commanded. Velocities
are not measured: they begin at rest. Plain; the tick thread.
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.result import LastCommand

AGREE_SHARE, AGREE_STEPS = 0.02, 10


class StartPosition:
    """See the module. `tolerance_share` is of a joint's range."""

    def __init__(self, limits: MotionLimits, *, samples: int, tolerance_share: float) -> None:
        if samples < 1 or not tolerance_share >= 0:
            raise ValueError(
                f'a start needs a sample and a share, got {samples}, {tolerance_share}'
            )
        self._limits, self._samples = limits, samples
        self._range = np.maximum(limits.high - limits.low, 0.0)
        steps = limits.max_step
        self._apart = np.maximum(steps, np.minimum(AGREE_SHARE * self._range, AGREE_STEPS * steps))
        with np.errstate(invalid='ignore'):
            self._outside = np.nan_to_num(tolerance_share * self._range, nan=0.0)
        self._newest: np.ndarray | None = None
        self._arrived_ns: tuple[int, ...] = ()
        self._agreed = 0
        # the joint that differed last since the count began, for the text
        self._differed = ''

    def see(self, measured: np.ndarray | None, arrived_ns: tuple[int, ...] = ()) -> None:
        """
        Take what is measured; `arrived_ns` is when each of its messages came: what did not change
        is no new sample.
        """
        known = self._limits.start(measured)
        if known is None:
            self._newest, self._agreed = None, 0
            return
        old_ns = self._arrived_ns
        if self._newest is None:
            self._agreed = 1
        elif len(old_ns) == len(arrived_ns) and not all(
            new > old for new, old in zip(arrived_ns, old_ns, strict=True)
        ):
            return
        else:
            self._agreed = 1 if self._differ(known.position) else self._agreed + 1
        self._newest, self._arrived_ns = known.position, arrived_ns

    def _differ(self, position: np.ndarray) -> bool:
        """Return whether a joint is too far from where it was in the sample before."""
        too_far = abs(position - self._newest) - self._apart
        joint = int(too_far.argmax())
        differs = bool(too_far[joint] > 0)
        if differs:
            bound = self._apart[joint]
            self._differed = f'; {self._limits.names[joint]} moves or jumps by more than {bound:g}'
        return differs

    def forget(self) -> None:
        """Count samples from the next one on."""
        self._newest, self._agreed, self._differed = None, 0, ''

    @property
    def agreed(self) -> np.ndarray | None:
        """Where the robot stands, as far as enough samples agree."""
        return self._newest if self._agreed >= self._samples else None

    def last(self) -> LastCommand | None:
        """Return what a first command is bounded from, None while that is not known."""
        if self._limits.is_velocity.all():
            return self._limits.start(None)
        here = self.agreed
        return None if here is None else LastCommand(here, np.zeros(here.shape))

    def why_not(self) -> str:
        """Return why nothing may be played from here, empty when it may."""
        last = self.last()
        if last is None:
            if self._newest is None:
                return 'where the robot is is not known'
            # without a count, which would make each look another reason
            return f'no {self._samples} measured samples in a row agree yet{self._differed}'
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
            'it there by hand'
        )
