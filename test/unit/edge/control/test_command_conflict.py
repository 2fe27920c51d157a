# SPDX-License-Identifier: Apache-2.0
"""Two edge controllers on one command topic."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge.control.command_conflict import (
    CommandConflict,
    ConflictAction,
    OtherPublisher,
    OwnAge,
    start_refusal,
    TIE_NS,
    UNKNOWN_NS,
    YOUNGER_EXITS_NS,
)

TOPIC = '/robot_1/command'
OWN = (5,)
GIDS = [(1,), (9,)]
TIE_STEPS = 30


def update(
    conflict: CommandConflict,
    *others: OtherPublisher,
    now_ns: int = 0,
    age: int = 50,
    has_commanded: bool = True,
) -> ConflictAction:
    return conflict.update(list(others), OwnAge(age, has_commanded), now_ns)


def test_one_that_starts_is_refused_and_the_other_is_named():
    assert start_refusal(TOPIC, []) == ''
    text = start_refusal(TOPIC, [OtherPublisher('/robot_1/edge_controller', (1,))])
    assert '/robot_1/edge_controller' in text
    assert TOPIC in text


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize('has_commanded', [False, True])
def test_the_younger_one_gives_way_at_once(gid, has_commanded):
    conflict = CommandConflict(TOPIC, OWN, tie_steps=TIE_STEPS)
    assert update(conflict, has_commanded=has_commanded) is ConflictAction.NONE
    older = OtherPublisher('/b', gid, age=51)
    assert update(conflict, older, has_commanded=has_commanded) is ConflictAction.EXIT


@pytest.mark.parametrize(
    ('gid', 'finding'), zip(GIDS, [ConflictAction.EXIT, ConflictAction.NONE], strict=True)
)
def test_of_two_of_one_age_one_gives_way(gid, finding):
    assert (
        update(CommandConflict(TOPIC, OWN, tie_steps=TIE_STEPS), OtherPublisher('/b', gid, age=50))
        is finding
    )


@pytest.mark.parametrize('gid', GIDS)
def test_one_that_has_not_commanded_gives_way_to_one_whose_age_is_not_known(gid):
    conflict = CommandConflict(TOPIC, OWN, tie_steps=TIE_STEPS)
    assert update(conflict, OtherPublisher('/b', gid), has_commanded=False) is ConflictAction.EXIT


@pytest.mark.parametrize('lags', list(product((0, 1, 7, 12), repeat=2)))
@pytest.mark.parametrize('difference', [0, 1, 5, 11, 12, 13, 50])
@pytest.mark.parametrize('older_has_the_greater_gid', [False, True])
def test_of_two_that_know_of_each_other_late_exactly_one_gives_way(
    lags, difference, older_has_the_greater_gid
):
    # each compares its age with a state of the other one, as old as a state can be
    gids = [(9,), (1,)] if older_has_the_greater_gid else [(1,), (9,)]
    ages = {gids[0]: 500 + difference, gids[1]: 500}
    edges = {gid: CommandConflict(TOPIC, gid, tie_steps=TIE_STEPS) for gid in gids}
    gone: list[tuple[int, ...]] = []
    for now_ns in range(0, YOUNGER_EXITS_NS, TIE_NS // 5):
        gave_way = [
            gid
            for (gid, edge), lag in zip(edges.items(), lags, strict=True)
            for other in gids
            if not gone and other != gid
            if edge.update(
                [OtherPublisher('/b', other, ages[other] - lag)], OwnAge(ages[gid], True), now_ns
            )
            is ConflictAction.EXIT
        ]
        gone += gave_way
    assert len(gone) == 1
    # the younger one, unless they are too close to tell
    assert gone == [gids[1]] or difference <= max(lags)


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize(('age', 'wait_ns'), [(None, UNKNOWN_NS), (20, YOUNGER_EXITS_NS)])
def test_the_older_one_waits_for_the_other_to_give_way(gid, age, wait_ns):
    conflict, other = (
        CommandConflict(TOPIC, OWN, tie_steps=TIE_STEPS),
        OtherPublisher('/b', gid, age),
    )
    assert update(conflict, other) is ConflictAction.NONE
    assert update(conflict, other, now_ns=wait_ns - 1) is ConflictAction.NONE
    assert not conflict.text
    # it gave way, and the next one has its own time
    assert update(conflict, now_ns=wait_ns) is ConflictAction.NONE
    assert update(conflict, other, now_ns=wait_ns + 1) is ConflictAction.NONE
    assert update(conflict, other, now_ns=2 * wait_ns) is ConflictAction.NONE
    assert not conflict.is_silent
    assert update(conflict, other, now_ns=2 * wait_ns + 1) is ConflictAction.PAUSE


@pytest.mark.parametrize(('gid', 'is_silent'), zip(GIDS, [True, False], strict=True))
def test_where_no_edge_gives_way_both_pause_and_one_falls_silent(gid, is_silent):
    conflict, other = CommandConflict(TOPIC, OWN, tie_steps=TIE_STEPS), OtherPublisher('/b', gid)
    update(conflict, other)
    assert update(conflict, other, now_ns=UNKNOWN_NS) is ConflictAction.PAUSE
    assert conflict.is_silent == is_silent
    assert '/b' in conflict.text
    # it pauses once, an operator who resumes has been warned; neither ends after that
    assert update(conflict, other, now_ns=2 * UNKNOWN_NS) is ConflictAction.NONE
    older = other._replace(age=99)
    assert update(conflict, older, now_ns=2 * UNKNOWN_NS) is ConflictAction.NONE
    assert update(conflict, now_ns=3 * UNKNOWN_NS) is ConflictAction.NONE
    # the robot may have been moved meanwhile: a silent one is restarted
    assert conflict.is_silent == is_silent
    assert bool(conflict.text) == is_silent


def test_of_any_number_one_goes_on():
    gids = [(n,) for n in range(5)]
    silent = []
    for own in gids:
        conflict = CommandConflict(TOPIC, own, tie_steps=TIE_STEPS)
        others = [OtherPublisher(f'/{gid}', gid) for gid in gids if gid != own]
        update(conflict, *others)
        update(conflict, *others, now_ns=UNKNOWN_NS)
        silent.append(conflict.is_silent)
    assert silent.count(False) == 1


def test_an_edge_that_does_not_know_its_own_publisher_is_not_silent_for_it():
    assert not CommandConflict(TOPIC, (), tie_steps=TIE_STEPS).is_silent
