# SPDX-License-Identifier: Apache-2.0
"""
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

from enum import Enum
from typing import NamedTuple

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


def hearing(arrivals: Arrivals) -> Hearing:
    """Return whether a learner is heard of; see the module."""
    if arrivals.states == 0:
        return Hearing.EXPECTED if arrivals.found_s < SILENT_S else Hearing.MUTE
    # a stamp of the future is of a clock that is off
    if abs(arrivals.age_s) <= SILENT_S:
        return Hearing.HEARD
    # only the first state can be older than its arrival
    if arrivals.arrived_s < NEW_STATE_S:
        return Hearing.EXPECTED
    return Hearing.SILENT


def silent_for_s(arrivals: Arrivals) -> float | None:
    """Return how long a learner has sent no state; None while it is heard of or expected."""
    found = hearing(arrivals)
    if found is Hearing.MUTE:
        return arrivals.found_s
    if found is Hearing.SILENT:
        # by the clocks of two machines it cannot be shorter than what was waited for
        return max(arrivals.age_s, arrivals.arrived_s)
    return None
