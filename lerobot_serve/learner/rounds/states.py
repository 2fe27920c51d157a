# SPDX-License-Identifier: Apache-2.0
"""
The state machine of a learner: one table.

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

from enum import auto, Enum

from lerobot_serve.contract.records import LearnerState

Phase = LearnerState.State


class Event(Enum):
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


BEGINS = (Event.EPISODES, Event.SCHEDULE, Event.ASKED, Event.UNFINISHED)
RUNNING = (Phase.CONVERTING, Phase.TRAINING, Phase.PUBLISHING)

TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    **{(Phase.WAITING, event): Phase.CONVERTING for event in BEGINS},
    (Phase.WAITING, Event.TRAINED_BEFORE): Phase.PUBLISHING,
    (Phase.WAITING, Event.STAGE): Phase.WAITING,
    (Phase.CONVERTING, Event.NOTHING_NEW): Phase.WAITING,
    (Phase.CONVERTING, Event.CONVERTED): Phase.TRAINING,
    (Phase.TRAINING, Event.TRAINED): Phase.PUBLISHING,
    (Phase.PUBLISHING, Event.PUBLISHED): Phase.WAITING,
    **{(phase, Event.FAILED): Phase.WAITING for phase in RUNNING},
    **{(phase, Event.PARENT_REJECTED): Phase.CONVERTING for phase in RUNNING},
    (Phase.WAITING, Event.PARENT_REJECTED): Phase.WAITING,
    (Phase.PAUSED, Event.PARENT_REJECTED): Phase.PAUSED,
    **{(phase, Event.PAUSE): Phase.PAUSED for phase in Phase},
    (Phase.PUBLISHING, Event.PAUSE): Phase.PUBLISHING,
    **{(phase, Event.RESUME): phase for phase in Phase},
    (Phase.PAUSED, Event.RESUME): Phase.WAITING,
}


class ImpossibleEvent(Exception):
    """An event that cannot happen in this state; nothing has changed."""


def next_phase(phase: Phase, event: Event) -> Phase:
    """Return the state after an event. Raises ImpossibleEvent."""
    try:
        return TRANSITIONS[phase, event]
    except KeyError:
        raise ImpossibleEvent(f'{event.name} in {phase.name}') from None
