# SPDX-License-Identifier: Apache-2.0
"""
Tracks the measured pose: start position, pose to hold, moves by hand, and silence.

Silence ends all that was known of the robot: it may have been moved meanwhile. It is

* a control step later than `silence_ns` after the one before: this process stood still (stopped,
  swapped out, a suspended machine);
* no new sample for longer than `unseen_ns`, once the joints are at rest;
* two consecutive samples that were sent further apart than that, by the clock of their sender:
  this machine's own clocks stood still, too (a paused virtual machine).

Nothing is commanded from then on until enough new samples agree. What arrived while the process
stood still is taken from the middleware one after the other, and says where the robot was then. So
a sample counts only from the step after the silence on, and where it came sooner after the one
before than it was sent after it, that one had waited, and the count begins with this one.

Start position: the measured position that the first command is bounded from.

One misread sample must not become the start. A start needs several consecutive new samples that
differ by at most AGREE_STEPS steps or AGREE_SHARE of the joint's range, whichever is less, but at
least one step: a robot moved by hand, or a sensor that jumps, has no start.

A joint may be outside its limits by a share of its range, since real arms rest slightly outside;
further out the sensor, the unit or the file is wrong and nothing is commanded. Velocities are not
measured: they start at rest. Plain; the tick thread.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from lerobot_serve.arrays import Float64Array, is_finite
from lerobot_serve.cage.description import JointValues, LastCommand
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.edge.inputs.state_reader import RobotState

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


# a sample that came in less than this share of the time after which it was sent had waited
WAITED_SHARE = 0.5
MOVED_SHARE, MOVED_STEPS = 0.1, 10


class ManualMoveDetector:
    """
    Detects that a holding robot was moved by hand, so that it does not return to the old pose.

    A joint under load also differs from its command. So the criterion is an increase of the offset
    since the hold began: by more than the least of `max_lead`, MOVED_STEPS steps and MOVED_SHARE
    of its range.
    """

    def __init__(self, limits: MotionLimits) -> None:
        spans = np.minimum(MOVED_SHARE * (limits.high - limits.low), MOVED_STEPS * limits.max_step)
        allowed = np.minimum(spans, limits.max_lead)
        self._allowed = np.where(limits.is_velocity, np.inf, allowed)
        self._smallest_offset: Float64Array | None = None

    def reset(self) -> None:
        """End the hold."""
        self._smallest_offset = None

    def was_moved(self, commanded: Float64Array, agreed: Float64Array | None) -> bool:
        """
        Return whether the robot was moved; `agreed` is the position that several samples agree on,
        or None.
        """
        if agreed is None:
            return False
        offset = abs(agreed - commanded)
        self._smallest_offset = (
            offset if self._smallest_offset is None else np.minimum(self._smallest_offset, offset)
        )
        return bool((offset - self._smallest_offset > self._allowed).any())


class PoseTracker:
    """
    Updated by the tick thread in each step. `silence` says why nothing is known of the robot, and
    is empty where it is known; `last_silence` is the cause of the last one, `silences` counts them
    by cause.
    """

    def __init__(
        self,
        start: StartPosition,
        holding: ManualMoveDetector,
        *,
        silence_ns: int,
        unseen_ns: int,
    ) -> None:
        self._start, self._holding = start, holding
        self._silence_ns, self._max_unseen_ns = silence_ns, unseen_ns
        self._stepped_ns: int | None = None
        self._seen_ns: int | None = None
        self._newest = RobotState()
        self._is_unseen = True
        self.silence = self.last_silence = ''
        self.silences = Counter[str]()

    def stood_still(self, now_ns: int) -> bool:
        """Return whether the last control step is so long ago that it is silence."""
        return self._stepped_ns is not None and now_ns - self._stepped_ns > self._silence_ns

    def update(self, state: RobotState, now_ns: int, *, plays: bool, moves: bool) -> bool:
        """
        Process the state of this step; return whether a silence ends in it. `plays`: a policy or
        a person commands, so no start is needed; `moves`: a joint was commanded to move.
        """
        has_stood_still = self.stood_still(now_ns)
        # it can come to rest on its way only where its commands went on
        is_late = (
            self._stepped_ns is not None and now_ns - self._stepped_ns > self._silence_ns // 2
        )
        is_new = self._is_new(state)
        is_overdue = self._unseen_for_ns(state, now_ns, is_new=is_new) > self._max_unseen_ns
        self._stepped_ns = now_ns
        self._is_unseen = not is_new and (self._seen_ns is None or is_overdue)
        if has_stood_still:
            self._begin_silence('stood_still', 'this process stood still')
        elif is_overdue and (is_new or is_late or not moves):
            self._begin_silence('state_missing', 'no new state came')
        if is_new:
            self._take(state, now_ns, counts=not has_stood_still)
        elif not _is_measured(state):
            self._start.reset()
        if plays and not self.silence:
            self._start.reset()
        ends = bool(self.silence) and self._start.agreed is not None
        self.silence = '' if ends else self.silence
        return ends

    def _is_new(self, state: RobotState) -> bool:
        """Return whether each message of a measured state is newer than the one before."""
        before_ns, arrived_ns = self._newest.arrived_ns, state.arrived_ns
        return _is_measured(state) and (
            len(arrived_ns) != len(before_ns)
            or all(new > old for new, old in zip(arrived_ns, before_ns, strict=True))
        )

    def _unseen_for_ns(self, state: RobotState, now_ns: int, *, is_new: bool) -> int:
        """Return how long no sample was taken, by this clock or that of the sender."""
        if self._seen_ns is None:
            return 0
        sent = zip(state.sent_ns, self._newest.sent_ns, strict=False) if is_new else ()
        return max(now_ns - self._seen_ns, *(new - old for new, old in sent), 0)

    def _begin_silence(self, cause: str, why: str) -> None:
        if not self.silence:
            self.silence = f'{why}; motion begins after consistent samples'
            self.last_silence = cause
            self.silences[cause] += 1
        self._start.reset()

    def _take(self, state: RobotState, now_ns: int, *, counts: bool) -> None:
        """Process a new sample."""
        before = self._newest
        self._newest, self._seen_ns = state, now_ns
        times = zip(
            state.sent_ns, before.sent_ns, state.arrived_ns, before.arrived_ns, strict=False
        )
        if any(WAITED_SHARE * (sent - old) > came - earlier for sent, old, came, earlier in times):
            self._start.reset()
        if counts:
            self._start.add_sample(state.measured)

    def start_blocked_by(self) -> str:
        """Return why motion may not start; empty if it may."""
        return self.silence or self._start.blocked_reason()

    def start_command(self) -> LastCommand | None:
        """
        Return the start of a first command, None while motion may not start: far outside its
        limits the sensor is wrong, and a hold would drive the robot there.
        """
        return None if self.start_blocked_by() else self._start.start_command()

    def unseen_reason(self) -> str:
        """Return why moving joints must come to rest; empty if they may move."""
        return 'state is missing or stale' if self._is_unseen else ''

    def was_moved(self, last: LastCommand | None, *, holds: bool) -> bool:
        """Return whether the robot was moved by hand while it held."""
        was_moved = (
            holds
            and last is not None
            and self._holding.was_moved(last.position, self._start.agreed)
        )
        if was_moved or not holds:
            self._holding.reset()
        return was_moved

    def measured_pose(self, commanded: Float64Array) -> Float64Array:
        """Return the measured pose, or the commanded one if unknown."""
        return commanded if self._start.agreed is None else self._start.agreed


def _is_measured(state: RobotState) -> bool:
    return state.measured is not None and is_finite(state.measured)
