# SPDX-License-Identifier: Apache-2.0
"""
The state machine of a canary: one table.

A row is a state, a column an event, a dot means that it cannot happen there:

              START   READY   HOLD      CONTINUE ADVANCE FINISH   ROLL_BACK   PAUSE RESUME RESTART
  OFF         WAITING .       .         .        .       .        .           .     .      .
  WAITING     .       RUNNING .         .        .       .        ROLLED_BACK .     .      WAITING
  RUNNING     .       .       UNDECIDED .        RUNNING PROMOTED ROLLED_BACK PAUSED .      WAITING
  UNDECIDED   .       .       .         RUNNING  RUNNING PROMOTED ROLLED_BACK PAUSED .      WAITING
  PAUSED      .       .       .         .        PAUSED  PROMOTED ROLLED_BACK .     RUNNING WAITING
  PROMOTED    .       .       .         .        .       .        ROLLED_BACK .     .      WAITING
  ROLLED_BACK .       .       .         .        .       .        .           .     WAITING WAITING

STOP leads to OFF from everywhere. The share rises at READY, ADVANCE and FINISH alone. Nothing that
passes by itself leads out of PROMOTED and ROLLED_BACK.
"""

from __future__ import annotations

from enum import auto, Enum


class CanaryPhase(Enum):
    """What a canary does."""

    # there is no plan
    OFF = 'off'
    # the candidate may take no traffic yet
    WAITING = 'waiting'
    # the step's least episodes and time are not over
    RUNNING = 'running'
    # undecided, or something was not seen; the share stays
    UNDECIDED = 'undecided'
    # by an operator; the share stays, guards still roll back
    PAUSED = 'paused'
    # all new episodes to the candidate
    PROMOTED = 'promoted'
    # no new episodes to the candidate
    ROLLED_BACK = 'rolled_back'


class CanaryTrigger(Enum):
    """What happens to a canary."""

    # there is a plan
    START = auto()
    # the plan was taken away
    STOP = auto()
    # the candidate may take traffic
    READY = auto()
    # the step is over but for what is undecided or unseen
    HOLD = auto()
    # it is not over
    CONTINUE = auto()
    # to the next step below 100 %
    ADVANCE = auto()
    # to 100 %
    FINISH = auto()
    # a guard, the comparison or an operator
    ROLL_BACK = auto()
    # by an operator
    PAUSE = auto()
    RESUME = auto()
    # another plan or another policy: all counts are 0
    RESTART = auto()


ON_TRIAL = (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED, CanaryPhase.PAUSED)

TRANSITIONS = {
    (CanaryPhase.OFF, CanaryTrigger.START): CanaryPhase.WAITING,
    (CanaryPhase.WAITING, CanaryTrigger.READY): CanaryPhase.RUNNING,
    (CanaryPhase.RUNNING, CanaryTrigger.HOLD): CanaryPhase.UNDECIDED,
    (CanaryPhase.UNDECIDED, CanaryTrigger.CONTINUE): CanaryPhase.RUNNING,
    (CanaryPhase.RUNNING, CanaryTrigger.ADVANCE): CanaryPhase.RUNNING,
    (CanaryPhase.UNDECIDED, CanaryTrigger.ADVANCE): CanaryPhase.RUNNING,
    (CanaryPhase.PAUSED, CanaryTrigger.ADVANCE): CanaryPhase.PAUSED,
    **{(state, CanaryTrigger.FINISH): CanaryPhase.PROMOTED for state in ON_TRIAL},
    **{
        (state, CanaryTrigger.ROLL_BACK): CanaryPhase.ROLLED_BACK
        for state in (CanaryPhase.WAITING, *ON_TRIAL, CanaryPhase.PROMOTED)
    },
    (CanaryPhase.RUNNING, CanaryTrigger.PAUSE): CanaryPhase.PAUSED,
    (CanaryPhase.UNDECIDED, CanaryTrigger.PAUSE): CanaryPhase.PAUSED,
    (CanaryPhase.PAUSED, CanaryTrigger.RESUME): CanaryPhase.RUNNING,
    (CanaryPhase.ROLLED_BACK, CanaryTrigger.RESUME): CanaryPhase.WAITING,
    **{
        (state, CanaryTrigger.RESTART): CanaryPhase.WAITING
        for state in CanaryPhase
        if state is not CanaryPhase.OFF
    },
    **{
        (state, CanaryTrigger.STOP): CanaryPhase.OFF
        for state in CanaryPhase
        if state is not CanaryPhase.OFF
    },
}
