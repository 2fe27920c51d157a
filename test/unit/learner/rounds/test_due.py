# SPDX-License-Identifier: Apache-2.0
"""When a round begins: every combination of facts."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.learner.rounds.due import (
    due_event,
    Facts,
    FIRST_RETRY_S,
    LONGEST_RETRY_S,
    retry_delay_s,
    Unfinished,
)
from lerobot_serve.learner.rounds.states import Event

FLAGS = (False, True)
EVERY = [Facts(*values) for values in product(FLAGS, FLAGS, Unfinished, FLAGS, FLAGS, FLAGS)]


def reasons(facts: Facts) -> list[Event]:
    """Return why a round would begin, the strongest first."""
    found = []
    if facts.unfinished is Unfinished.TRAINED:
        found.append(Event.TRAINED_BEFORE)
    if facts.is_asked:
        found.append(Event.ASKED)
    if facts.unfinished is Unfinished.BEGUN:
        found.append(Event.UNFINISHED)
    if facts.has_enough:
        found.append(Event.EPISODES)
    if facts.is_scheduled:
        found.append(Event.SCHEDULE)
    return found


@pytest.mark.parametrize('facts', EVERY)
def test_the_strongest_reason_counts(facts):
    if facts.is_paused:
        expected = Event.PAUSE
    elif not facts.may_retry and not facts.is_asked:
        expected = None
    else:
        expected = next(iter(reasons(facts)), None)
    assert due_event(facts) is expected


def test_the_time_after_failed_rounds_grows_to_a_bound():
    delays = [retry_delay_s(failures) for failures in range(100)]
    assert delays[:4] == [0.0, FIRST_RETRY_S, 2 * FIRST_RETRY_S, 4 * FIRST_RETRY_S]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_RETRY_S
