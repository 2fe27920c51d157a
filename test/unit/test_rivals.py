"""Two edge controllers on one command topic."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge.rivals import (
    Finding,
    GIVING_WAY_NS,
    Own,
    refusal,
    Rival,
    Rivalry,
    TIE_NS,
    UNKNOWN_NS,
)

TOPIC = '/robot_1/command'
OWN = (5,)
GIDS = [(1,), (9,)]
TIE_TICKS = 30


def update(
    rivalry: Rivalry, *rivals: Rival, now_ns: int = 0, ticks: int = 50, has_commanded: bool = True
) -> Finding:
    return rivalry.update(list(rivals), Own(ticks, has_commanded), now_ns)


def test_one_that_starts_is_refused_and_the_other_is_named():
    assert refusal(TOPIC, []) == ''
    text = refusal(TOPIC, [Rival('/robot_1/edge_controller', (1,))])
    assert '/robot_1/edge_controller' in text
    assert TOPIC in text


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize('has_commanded', [False, True])
def test_the_younger_one_gives_way_at_once(gid, has_commanded):
    rivalry = Rivalry(TOPIC, OWN, tie_ticks=TIE_TICKS)
    assert update(rivalry, has_commanded=has_commanded) is Finding.NOTHING
    older = Rival('/b', gid, ticks=51)
    assert update(rivalry, older, has_commanded=has_commanded) is Finding.GIVE_WAY


@pytest.mark.parametrize(
    ('gid', 'finding'), zip(GIDS, [Finding.GIVE_WAY, Finding.NOTHING], strict=True)
)
def test_of_two_of_one_age_one_gives_way(gid, finding):
    assert update(Rivalry(TOPIC, OWN, tie_ticks=TIE_TICKS), Rival('/b', gid, ticks=50)) is finding


@pytest.mark.parametrize('gid', GIDS)
def test_one_that_has_not_commanded_gives_way_to_one_whose_age_is_not_known(gid):
    rivalry = Rivalry(TOPIC, OWN, tie_ticks=TIE_TICKS)
    assert update(rivalry, Rival('/b', gid), has_commanded=False) is Finding.GIVE_WAY


@pytest.mark.parametrize('lags', list(product((0, 1, 7, 12), repeat=2)))
@pytest.mark.parametrize('difference', [0, 1, 5, 11, 12, 13, 50])
@pytest.mark.parametrize('older_has_the_greater_gid', [False, True])
def test_of_two_that_know_of_each_other_late_exactly_one_gives_way(
    lags, difference, older_has_the_greater_gid
):
    # each compares its age with a state of the other one, as old as a state can be
    gids = [(9,), (1,)] if older_has_the_greater_gid else [(1,), (9,)]
    ages = {gids[0]: 500 + difference, gids[1]: 500}
    edges = {gid: Rivalry(TOPIC, gid, tie_ticks=TIE_TICKS) for gid in gids}
    gone: list[tuple[int, ...]] = []
    for now_ns in range(0, GIVING_WAY_NS, TIE_NS // 5):
        gave_way = [
            gid
            for (gid, edge), lag in zip(edges.items(), lags, strict=True)
            for other in gids
            if not gone and other != gid
            if edge.update([Rival('/b', other, ages[other] - lag)], Own(ages[gid], True), now_ns)
            is Finding.GIVE_WAY
        ]
        gone += gave_way
    assert len(gone) == 1
    # the younger one, unless they are too close to tell
    assert gone == [gids[1]] or difference <= max(lags)


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize(('ticks', 'wait_ns'), [(None, UNKNOWN_NS), (20, GIVING_WAY_NS)])
def test_the_older_one_waits_for_the_other_to_give_way(gid, ticks, wait_ns):
    rivalry, other = Rivalry(TOPIC, OWN, tie_ticks=TIE_TICKS), Rival('/b', gid, ticks)
    assert update(rivalry, other) is Finding.NOTHING
    assert update(rivalry, other, now_ns=wait_ns - 1) is Finding.NOTHING
    assert not rivalry.text
    # it gave way, and the next one has its own time
    assert update(rivalry, now_ns=wait_ns) is Finding.NOTHING
    assert update(rivalry, other, now_ns=wait_ns + 1) is Finding.NOTHING
    assert update(rivalry, other, now_ns=2 * wait_ns) is Finding.NOTHING
    assert not rivalry.is_silent
    assert update(rivalry, other, now_ns=2 * wait_ns + 1) is Finding.PAUSE


@pytest.mark.parametrize(('gid', 'is_silent'), zip(GIDS, [True, False], strict=True))
def test_where_no_edge_gives_way_both_pause_and_one_falls_silent(gid, is_silent):
    rivalry, other = Rivalry(TOPIC, OWN, tie_ticks=TIE_TICKS), Rival('/b', gid)
    update(rivalry, other)
    assert update(rivalry, other, now_ns=UNKNOWN_NS) is Finding.PAUSE
    assert rivalry.is_silent == is_silent
    assert '/b' in rivalry.text
    # it pauses once, an operator who resumes has been warned; neither ends after that
    assert update(rivalry, other, now_ns=2 * UNKNOWN_NS) is Finding.NOTHING
    older = other._replace(ticks=99)
    assert update(rivalry, older, now_ns=2 * UNKNOWN_NS) is Finding.NOTHING
    assert update(rivalry, now_ns=3 * UNKNOWN_NS) is Finding.NOTHING
    # the robot may have been moved meanwhile: a silent one is restarted
    assert rivalry.is_silent == is_silent
    assert bool(rivalry.text) == is_silent


def test_of_any_number_one_goes_on():
    gids = [(n,) for n in range(5)]
    silent = []
    for own in gids:
        rivalry = Rivalry(TOPIC, own, tie_ticks=TIE_TICKS)
        others = [Rival(f'/{gid}', gid) for gid in gids if gid != own]
        update(rivalry, *others)
        update(rivalry, *others, now_ns=UNKNOWN_NS)
        silent.append(rivalry.is_silent)
    assert silent.count(False) == 1


def test_an_edge_that_does_not_know_its_own_publisher_is_not_silent_for_it():
    assert not Rivalry(TOPIC, (), tie_ticks=TIE_TICKS).is_silent
