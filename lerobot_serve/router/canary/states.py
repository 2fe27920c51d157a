"""
The state machine of a canary: one table.

A row is a state, a column an event, a dot means that it cannot happen there:

                START   READY   HOLD GATHER  ADVANCE FINISH   ROLL_BACK   PAUSE  RESUME  ANEW
    OFF         WAITING .       .    .       .       .        .           .      .       .
    WAITING     .       RUNNING .    .       .       .        ROLLED_BACK .      .       WAITING
    RUNNING     .       .       HELD .       RUNNING PROMOTED ROLLED_BACK PAUSED .       WAITING
    HELD        .       .       .    RUNNING RUNNING PROMOTED ROLLED_BACK PAUSED .       WAITING
    PAUSED      .       .       .    .       PAUSED  PROMOTED ROLLED_BACK .      RUNNING WAITING
    PROMOTED    .       .       .    .       .       .        ROLLED_BACK .      .       WAITING
    ROLLED_BACK .       .       .    .       .       .        .           .      WAITING WAITING

STOP leads to OFF from everywhere. The share rises at READY, ADVANCE and FINISH alone. Nothing that
passes by itself leads out of PROMOTED and ROLLED_BACK.
"""

from __future__ import annotations

from enum import auto, Enum


class State(Enum):
    """What a canary does."""

    # there is no plan
    OFF = 'off'
    # the candidate may take no traffic yet
    WAITING = 'waiting'
    # the step's least episodes and time are not over
    RUNNING = 'running'
    # undecided, or something was not seen; the share stays
    HELD = 'held'
    # by an operator; the share stays, guards still roll back
    PAUSED = 'paused'
    # all new episodes to the candidate
    PROMOTED = 'promoted'
    # no new episodes to the candidate
    ROLLED_BACK = 'rolled_back'


class Event(Enum):
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
    GATHER = auto()
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
    ANEW = auto()


ON_TRIAL = (State.RUNNING, State.HELD, State.PAUSED)

NEXT = {
    (State.OFF, Event.START): State.WAITING,
    (State.WAITING, Event.READY): State.RUNNING,
    (State.RUNNING, Event.HOLD): State.HELD,
    (State.HELD, Event.GATHER): State.RUNNING,
    (State.RUNNING, Event.ADVANCE): State.RUNNING,
    (State.HELD, Event.ADVANCE): State.RUNNING,
    (State.PAUSED, Event.ADVANCE): State.PAUSED,
    **{(state, Event.FINISH): State.PROMOTED for state in ON_TRIAL},
    **{
        (state, Event.ROLL_BACK): State.ROLLED_BACK
        for state in (State.WAITING, *ON_TRIAL, State.PROMOTED)
    },
    (State.RUNNING, Event.PAUSE): State.PAUSED,
    (State.HELD, Event.PAUSE): State.PAUSED,
    (State.PAUSED, Event.RESUME): State.RUNNING,
    (State.ROLLED_BACK, Event.RESUME): State.WAITING,
    **{(state, Event.ANEW): State.WAITING for state in State if state is not State.OFF},
    **{(state, Event.STOP): State.OFF for state in State if state is not State.OFF},
}
