# SPDX-License-Identifier: Apache-2.0
"""Each way in which a process ends, with every count of quick failures before it."""

from __future__ import annotations

import pytest

from lerobot_serve.tools.fleet.restarts import (
    Action,
    decide,
    delay_s,
    Ending,
    ending_of,
    LONGEST_DELAY_S,
    QUICK_FAILURES,
    QUICK_S,
    Reaction,
)

QUICK, LONG = QUICK_S - 0.1, QUICK_S
RESTART, LEAVE, GIVE_UP = Action.RESTART, Action.LEAVE, Action.GIVE_UP
# (exit status, quick failures before) -> what follows a quick end
TABLE = {
    **{(0, before): Reaction(LEAVE, 0.0, 0) for before in range(12)},
    (1, 0): Reaction(RESTART, 1.0, 1),
    (1, 1): Reaction(RESTART, 2.0, 2),
    **{(1, before): Reaction(GIVE_UP, 0.0, before + 1) for before in range(2, 12)},
    (-9, 0): Reaction(RESTART, 1.0, 1),
    (-9, 1): Reaction(RESTART, 2.0, 2),
    (-9, 2): Reaction(RESTART, 4.0, 3),
    (-9, 3): Reaction(RESTART, 8.0, 4),
    (-9, 4): Reaction(RESTART, 16.0, 5),
    **{(-9, before): Reaction(RESTART, 30.0, before + 1) for before in range(5, 9)},
    **{(-9, before): Reaction(GIVE_UP, 0.0, before + 1) for before in range(9, 12)},
}


@pytest.mark.parametrize(('status', 'before'), TABLE)
def test_after_a_quick_end(status, before):
    assert decide(status, QUICK, before) == TABLE[status, before]


@pytest.mark.parametrize('before', range(12))
@pytest.mark.parametrize('status', [1, 2, 137, -9, -11])
def test_after_a_long_run_the_count_begins_again(status, before):
    assert decide(status, LONG, before) == Reaction(RESTART, 1.0, 0)


@pytest.mark.parametrize('before', range(12))
def test_what_an_operator_stopped_is_left_also_after_a_long_run(before):
    assert decide(0, LONG, before) == Reaction(LEAVE, 0.0, 0)


def test_every_ending_has_a_rule():
    assert set(QUICK_FAILURES) == set(Ending)
    assert {ending_of(status) for status in (0, 1, 255, -1, -15)} == set(Ending)


def test_delays_grow_to_a_limit():
    delays = [delay_s(count) for count in range(1000)]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S
