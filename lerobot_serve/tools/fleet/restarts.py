# SPDX-License-Identifier: Apache-2.0
"""Decide what follows the end of a process: a restart, and after which delay. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

# an end within this time counts as a quick failure [s]; a policy may take half of it to load
QUICK_S = 60.0
FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 30.0


class Ending(Enum):
    """How a process ended."""

    # status 0: an operator stopped it
    IN_ORDER = 'in order'
    # a status: a mistake of the user, or an error
    FAILED = 'failed'
    # a signal: killed, out of memory, or a crash of native code
    KILLED = 'killed'


class Action(Enum):
    """What the supervisor does next with the process."""

    RESTART = 'restart'
    LEAVE = 'leave'
    GIVE_UP = 'give up'


# ending -> quick failures in a row after which the process is given up; None: never restarted
QUICK_FAILURES: dict[Ending, int | None] = {
    Ending.IN_ORDER: None,
    Ending.FAILED: 3,
    Ending.KILLED: 10,
}


@dataclass(frozen=True, slots=True)
class Reaction:
    """The action, the delay of a restart [s], and the quick failures in a row until now."""

    action: Action
    delay_s: float
    quick_failures: int


def ending_of(status: int) -> Ending:
    """Return how a process with this exit status ended; it is negative for a signal."""
    if status == 0:
        return Ending.IN_ORDER
    return Ending.KILLED if status < 0 else Ending.FAILED


def decide(status: int, ran_s: float, quick_failures: int) -> Reaction:
    """
    Return what follows the end of a process that ran for `ran_s`, after `quick_failures` in a row
    before this one.
    """
    limit = QUICK_FAILURES[ending_of(status)]
    if limit is None:
        return Reaction(Action.LEAVE, 0.0, 0)
    quick = quick_failures + 1 if ran_s < QUICK_S else 0
    if quick >= limit:
        return Reaction(Action.GIVE_UP, 0.0, quick)
    return Reaction(Action.RESTART, delay_s(quick), quick)


def delay_s(quick_failures: int) -> float:
    """Return the delay before a restart: doubled with each quick failure [s]."""
    return min(LONGEST_DELAY_S, FIRST_DELAY_S * 2.0 ** max(0, quick_failures - 1))
