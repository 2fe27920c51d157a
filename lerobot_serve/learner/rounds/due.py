# SPDX-License-Identifier: Apache-2.0
"""Whether a waiting learner begins a round, and why: one table. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
import math

from lerobot_serve.learner.rounds.states import Event

FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0
# processes that ended during one round, after which it is given up
MOST_DEATHS = 3
# a conversion starts a process that imports LeRobot, which takes seconds
LEAST_STAGED, STAGED_SHARE = 5, 0.2


class Unfinished(Enum):
    """A round that was begun and has not ended."""

    NONE = 'none'
    BEGUN = 'begun'
    TRAINED = 'trained'


@dataclass(frozen=True, slots=True)
class Facts:
    """
    What is known while the learner waits: the intent of a person (`is_paused`, `is_asked`),
    whether there are enough new episodes, whether the schedule is due, and whether the time after
    a failed round is over. `has_to_stage`: enough episodes to convert them ahead of their round.
    """

    is_paused: bool
    is_asked: bool
    unfinished: Unfinished
    has_enough: bool
    is_scheduled: bool
    may_retry: bool
    has_to_stage: bool


def due_event(facts: Facts) -> Event | None:
    """Return what happens now; None while the learner waits."""
    if facts.is_paused:
        return Event.PAUSE
    # a person does not wait for the time after a failed round
    if not (facts.may_retry or facts.is_asked):
        return None
    if facts.unfinished is Unfinished.TRAINED:
        return Event.TRAINED_BEFORE
    if facts.is_asked:
        return Event.ASKED
    if facts.unfinished is Unfinished.BEGUN:
        return Event.UNFINISHED
    if facts.has_enough:
        return Event.EPISODES
    if facts.is_scheduled:
        # bags of other recorders are found when a round looks for them
        return Event.SCHEDULE
    return Event.STAGE if facts.has_to_stage else None


def has_to_stage(*, unstaged: int, new: int, wanted: int) -> bool:
    """
    Return whether a conversion ahead of the round begins: with a share of the episodes, unless the
    round begins soon and would wait for its end.
    """
    at_once = max(LEAST_STAGED, math.ceil(STAGED_SHARE * wanted))
    return unstaged >= at_once and wanted - new >= at_once


def retry_delay_s(failures: int) -> float:
    """Return how long a learner waits after so many failed rounds in a row."""
    if not failures:
        return 0.0
    # the exponent is bounded for a learner that fails for years
    return min(LONGEST_RETRY_S, FIRST_RETRY_S * (1 << min(failures - 1, 10)))
