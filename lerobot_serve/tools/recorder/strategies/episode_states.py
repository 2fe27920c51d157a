# SPDX-License-Identifier: Apache-2.0
"""
When the bag of an episode ends: a table. Pure.

An episode that ended waits for its outcome, and for messages of its last control steps that are
still on their way.
"""

from __future__ import annotations

from enum import Enum


class Phase(Enum):
    """What is known of an episode; `JUDGED` and `COMPLETE` have an outcome."""

    RUNNING = 'running'
    JUDGED = 'judged'
    ENDED = 'ended'
    COMPLETE = 'complete'
    CLOSED = 'closed'


class Event(Enum):
    """What happened to an episode."""

    # the robot runs it
    RUNS = 'runs'
    # the robot runs another one, or none
    RUNS_NOT = 'not running'
    OUTCOME = 'outcome'
    # nothing of its last control steps is on its way any more
    SETTLED = 'settled'
    # an outcome would have come by now
    OUTCOME_LATE = 'outcome late'
    # the robot was not heard for a while
    GONE = 'gone'


P, E = Phase, Event
NEXT: dict[Phase, dict[Event, Phase]] = {
    P.RUNNING: {
        E.RUNS: P.RUNNING,
        E.RUNS_NOT: P.ENDED,
        E.OUTCOME: P.JUDGED,
        E.SETTLED: P.RUNNING,
        E.OUTCOME_LATE: P.RUNNING,
        E.GONE: P.CLOSED,
    },
    P.JUDGED: {
        E.RUNS: P.JUDGED,
        E.RUNS_NOT: P.COMPLETE,
        E.OUTCOME: P.JUDGED,
        E.SETTLED: P.JUDGED,
        E.OUTCOME_LATE: P.JUDGED,
        E.GONE: P.CLOSED,
    },
    P.ENDED: {
        # an id is not used twice: a late report
        E.RUNS: P.ENDED,
        E.RUNS_NOT: P.ENDED,
        E.OUTCOME: P.COMPLETE,
        E.SETTLED: P.ENDED,
        E.OUTCOME_LATE: P.CLOSED,
        E.GONE: P.CLOSED,
    },
    P.COMPLETE: {
        E.RUNS: P.COMPLETE,
        E.RUNS_NOT: P.COMPLETE,
        E.OUTCOME: P.COMPLETE,
        E.SETTLED: P.CLOSED,
        E.OUTCOME_LATE: P.CLOSED,
        E.GONE: P.CLOSED,
    },
    P.CLOSED: dict.fromkeys(Event, P.CLOSED),
}
RUNNING = (Phase.RUNNING, Phase.JUDGED)
