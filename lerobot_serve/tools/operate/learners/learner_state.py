# SPDX-License-Identifier: Apache-2.0
"""
A learner with its state, and numbers that are safe to print.

When a learner counts as silent: one table. Pure; any thread.

  states received   condition                               hearing
  none              found less than SILENT_S ago            EXPECTED
  none              found before                            MUTE
  one, latched      fresh by the clocks of both machines    HEARD
  one, latched      old, and arrived within NEW_STATE_S     EXPECTED
  one, latched      old, and arrived before                 SILENT
  several           the last one within SILENT_S            HEARD
  several           the last one before                     SILENT

A first, latched state may be of a learner that hangs, or of a machine whose clock is off: a new
one decides, since a learner publishes its state once a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
import math
from typing import NamedTuple

from lerobot_serve.contract.records import LearnerState
from lerobot_serve.learner.rounds.states import Phase, RUNNING

LEARNER_PHASES = tuple(phase.name for phase in Phase)
RUNNING_PHASES = tuple(phase.name for phase in RUNNING)
# of a learner that is found and whose state does not arrive
NO_STATE = 'UNKNOWN'
# a longer time left is not an estimate [s]
REMAINING_LIMIT_S = 366 * 86400.0


# of a learner whose state does not arrive
NOT_HEARD = LearnerState(progress=math.nan, loss=math.nan, remaining_s=math.nan)


@dataclass(frozen=True, slots=True)
class LearnerView:
    """
    A learner with its last state. `silent_s` is how long a silent one has sent no state; None
    while it sends.
    """

    node: str
    state: LearnerState = NOT_HEARD
    silent_s: float | None = None

    @property
    def phase(self) -> str:
        """One of LEARNER_PHASES, NO_STATE, or a phase of a newer learner."""
        return NO_STATE if self.state is NOT_HEARD else self.state.state.name

    @property
    def progress(self) -> float | None:
        """The share of the running phase that is done; None if unknown, as the next two."""
        share = self.state.progress
        return min(1.0, max(0.0, share)) if math.isfinite(share) else None

    @property
    def loss(self) -> float | None:
        return self.state.loss if math.isfinite(self.state.loss) else None

    @property
    def remaining_s(self) -> float | None:
        left_s = self.state.remaining_s
        return left_s if 0 <= left_s <= REMAINING_LIMIT_S else None

    @property
    def has_diverged(self) -> bool:
        return math.isinf(self.state.loss)

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None

    @property
    def is_running(self) -> bool:
        """Whether a round runs, by the newest state."""
        return self.phase in RUNNING_PHASES and not self.is_silent


SILENT_S, NEW_STATE_S = 3.0, 1.5


class Hearing(Enum):
    """Whether a learner is heard of; EXPECTED: a state may still arrive."""

    EXPECTED = 'expected'
    HEARD = 'heard'
    SILENT = 'silent'
    MUTE = 'mute'


class Arrivals(NamedTuple):
    """
    The states of a learner that have arrived: how many, when the last one did [s ago], and its age
    [s], which for the first one is that of its stamp. `found_s`: since when the learner is found.
    """

    found_s: float
    states: int = 0
    arrived_s: float = 0.0
    age_s: float = 0.0


def hearing(arrivals: Arrivals) -> tuple[Hearing, float | None]:
    """
    Return whether a learner is heard of, see the module, and how long a silent or mute one has
    sent no state.
    """
    if arrivals.states == 0:
        is_new = arrivals.found_s < SILENT_S
        return (Hearing.EXPECTED, None) if is_new else (Hearing.MUTE, arrivals.found_s)
    # a stamp of the future is of a clock that is off
    if abs(arrivals.age_s) <= SILENT_S:
        return Hearing.HEARD, None
    # only the first state can be older than its arrival
    if arrivals.arrived_s < NEW_STATE_S:
        return Hearing.EXPECTED, None
    # by the clocks of two machines it cannot be shorter than what was waited for
    return Hearing.SILENT, max(arrivals.age_s, arrivals.arrived_s)
