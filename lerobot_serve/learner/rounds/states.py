# SPDX-License-Identifier: Apache-2.0
"""
The state machine of a learner, one table; and whether a waiting learner begins a round, another
one. Pure; any thread.

A row is a state, a column an event, a dot an impossible combination:

              begins     TRAINED_BEFORE STAGE   NOTHING_NEW CONVERTED TRAINED    PUBLISHED FAILED
  WAITING     CONVERTING PUBLISHING     WAITING .           .         .          .         .
  CONVERTING  .          .              .       WAITING     TRAINING  .          .         WAITING
  TRAINING    .          .              .       .           .         PUBLISHING .         WAITING
  PUBLISHING  .          .              .       .           .         .          WAITING   WAITING
  PAUSED      .          .              .       .           .         .          .         .

              PARENT_REJECTED PAUSE      RESUME
  WAITING     WAITING         PAUSED     WAITING
  CONVERTING  CONVERTING      PAUSED     CONVERTING
  TRAINING    CONVERTING      PAUSED     TRAINING
  PUBLISHING  CONVERTING      PUBLISHING PUBLISHING
  PAUSED      PAUSED          PAUSED     WAITING

`begins` are EPISODES, SCHEDULE, ASKED and UNFINISHED. A publication takes seconds: a pause lets it
end. A round that a pause ends is begun again, from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import auto, Enum
import math

from lerobot_serve.contract.records import LearnerState

Phase = LearnerState.State
FIRST_RETRY_S, LONGEST_RETRY_S = 60.0, 3600.0
# processes that ended during one round, after which it is given up
MOST_DEATHS = 3
# a conversion starts a process that imports LeRobot, which takes seconds
LEAST_STAGED, STAGED_SHARE = 5, 0.2


class RoundEvent(Enum):
    """What changes the state."""

    # enough new episodes
    EPISODES = auto()
    # the schedule
    SCHEDULE = auto()
    # by a person
    ASKED = auto()
    # a round that ended with a pause or with its process
    UNFINISHED = auto()
    # the same, of one whose policy is trained
    TRAINED_BEFORE = auto()
    # enough new episodes to convert them ahead of their round
    STAGE = auto()
    # after a search in all folders
    NOTHING_NEW = auto()
    CONVERTED = auto()
    TRAINED = auto()
    PUBLISHED = auto()
    FAILED = auto()
    # the policy that the running round builds on was rolled back
    PARENT_REJECTED = auto()
    # by a person
    PAUSE = auto()
    RESUME = auto()


BEGINS = (RoundEvent.EPISODES, RoundEvent.SCHEDULE, RoundEvent.ASKED, RoundEvent.UNFINISHED)
RUNNING = (Phase.CONVERTING, Phase.TRAINING, Phase.PUBLISHING)

TRANSITIONS: dict[tuple[Phase, RoundEvent], Phase] = {
    **{(Phase.WAITING, event): Phase.CONVERTING for event in BEGINS},
    (Phase.WAITING, RoundEvent.TRAINED_BEFORE): Phase.PUBLISHING,
    (Phase.WAITING, RoundEvent.STAGE): Phase.WAITING,
    (Phase.CONVERTING, RoundEvent.NOTHING_NEW): Phase.WAITING,
    (Phase.CONVERTING, RoundEvent.CONVERTED): Phase.TRAINING,
    (Phase.TRAINING, RoundEvent.TRAINED): Phase.PUBLISHING,
    (Phase.PUBLISHING, RoundEvent.PUBLISHED): Phase.WAITING,
    **{(phase, RoundEvent.FAILED): Phase.WAITING for phase in RUNNING},
    **{(phase, RoundEvent.PARENT_REJECTED): Phase.CONVERTING for phase in RUNNING},
    (Phase.WAITING, RoundEvent.PARENT_REJECTED): Phase.WAITING,
    (Phase.PAUSED, RoundEvent.PARENT_REJECTED): Phase.PAUSED,
    **{(phase, RoundEvent.PAUSE): Phase.PAUSED for phase in Phase},
    (Phase.PUBLISHING, RoundEvent.PAUSE): Phase.PUBLISHING,
    **{(phase, RoundEvent.RESUME): phase for phase in Phase},
    (Phase.PAUSED, RoundEvent.RESUME): Phase.WAITING,
}


class ImpossibleEvent(Exception):
    """An event that cannot happen in this state; nothing has changed."""


def next_phase(phase: Phase, event: RoundEvent) -> Phase:
    """Return the state after an event. Raises ImpossibleEvent."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ImpossibleEvent(f'{event.name} in {phase.name}') from None


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


def due_event(facts: Facts) -> RoundEvent | None:
    """Return what happens now; None while the learner waits."""
    if facts.is_paused:
        return RoundEvent.PAUSE
    # a person does not wait for the time after a failed round
    if not (facts.may_retry or facts.is_asked):
        return None
    if facts.unfinished is Unfinished.TRAINED:
        return RoundEvent.TRAINED_BEFORE
    if facts.is_asked:
        return RoundEvent.ASKED
    if facts.unfinished is Unfinished.BEGUN:
        return RoundEvent.UNFINISHED
    if facts.has_enough:
        return RoundEvent.EPISODES
    if facts.is_scheduled:
        # bags of other recorders are found when a round looks for them
        return RoundEvent.SCHEDULE
    return RoundEvent.STAGE if facts.has_to_stage else None


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
