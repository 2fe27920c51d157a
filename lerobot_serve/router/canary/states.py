# SPDX-License-Identifier: Apache-2.0
"""
The state machine of a canary: one table.

A row is a state, a column a trigger, a dot an impossible combination:

              START   READY   HOLD      CONTINUE ADVANCE FINISH   ROLL_BACK   PAUSE RESUME RESTART
  OFF         WAITING .       .         .        .       .        .           .     .      .
  WAITING     .       RUNNING .         .        .       .        ROLLED_BACK .     .      WAITING
  RUNNING     .       .       UNDECIDED .        RUNNING PROMOTED ROLLED_BACK PAUSED .      WAITING
  UNDECIDED   .       .       .         RUNNING  RUNNING PROMOTED ROLLED_BACK PAUSED .      WAITING
  PAUSED      .       .       .         .        PAUSED  PROMOTED ROLLED_BACK .     RUNNING WAITING
  PROMOTED    .       .       .         .        .       .        ROLLED_BACK .     .      WAITING
  ROLLED_BACK .       .       .         .        .       .        .           .     WAITING WAITING

STOP leads to OFF from every other state. The share rises only at READY, ADVANCE and FINISH.
PROMOTED and ROLLED_BACK end only by an operator, a new plan or a new policy.
"""

from __future__ import annotations

from enum import auto, Enum

from lerobot_serve.contract.records import CanaryState

# CanaryState.msg says what each is
CanaryPhase = CanaryState.State


class CanaryTrigger(Enum):
    """The trigger of a state change."""

    # a plan is set
    START = auto()
    # the plan is removed
    STOP = auto()
    # the candidate may receive traffic
    READY = auto()
    # the minimums are reached, the comparison is undecided or data is missing
    HOLD = auto()
    # the minimums are not reached any more
    CONTINUE = auto()
    # the next step below 100 %
    ADVANCE = auto()
    # the step of 100 %
    FINISH = auto()
    # by a guard, the comparison or an operator
    ROLL_BACK = auto()
    # by an operator
    PAUSE = auto()
    RESUME = auto()
    # a new plan or a new policy; all counts are reset
    RESTART = auto()


ON_TRIAL = (CanaryPhase.RUNNING, CanaryPhase.UNDECIDED, CanaryPhase.PAUSED)

TRANSITIONS: dict[tuple[CanaryPhase, CanaryTrigger], CanaryPhase] = {
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
