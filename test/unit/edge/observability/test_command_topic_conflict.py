"""Two edge controllers on one command topic."""

from __future__ import annotations

import pytest

from lerobot_serve.edge.control.command_conflict import (
    CommandConflict,
    ConflictAction,
    GIVING_WAY_NS,
    OtherPublisher,
    Own,
    start_refusal,
    UNKNOWN_NS,
)

TOPIC = '/robot_1/command'
OWN = (5,)
GIDS = [(1,), (9,)]


def update(
    rivalry: CommandConflict,
    *rivals: OtherPublisher,
    now_ns: int = 0,
    ticks: int = 50,
    has_commanded: bool = True,
) -> ConflictAction:
    return rivalry.update(list(rivals), Own(ticks, has_commanded), now_ns)


def test_one_that_starts_is_refused_and_the_other_is_named():
    assert start_refusal(TOPIC, []) == ''
    text = start_refusal(TOPIC, [OtherPublisher('/robot_1/edge_controller', (1,))])
    assert '/robot_1/edge_controller' in text
    assert TOPIC in text


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize('has_commanded', [False, True])
def test_the_younger_one_gives_way_at_once(gid, has_commanded):
    rivalry = CommandConflict(TOPIC, OWN)
    assert update(rivalry, has_commanded=has_commanded) is ConflictAction.NOTHING
    older = OtherPublisher('/b', gid, ticks=51)
    assert update(rivalry, older, has_commanded=has_commanded) is ConflictAction.GIVE_WAY


@pytest.mark.parametrize(
    ('gid', 'finding'), zip(GIDS, [ConflictAction.GIVE_WAY, ConflictAction.NOTHING], strict=True)
)
def test_of_two_of_one_age_one_gives_way(gid, finding):
    assert update(CommandConflict(TOPIC, OWN), OtherPublisher('/b', gid, ticks=50)) is finding


@pytest.mark.parametrize('gid', GIDS)
def test_one_that_has_not_commanded_gives_way_to_one_whose_age_is_not_known(gid):
    rivalry = CommandConflict(TOPIC, OWN)
    assert (
        update(rivalry, OtherPublisher('/b', gid), has_commanded=False) is ConflictAction.GIVE_WAY
    )


@pytest.mark.parametrize('gid', GIDS)
@pytest.mark.parametrize(('ticks', 'wait_ns'), [(None, UNKNOWN_NS), (49, GIVING_WAY_NS)])
def test_the_older_one_waits_for_the_other_to_give_way(gid, ticks, wait_ns):
    rivalry, other = CommandConflict(TOPIC, OWN), OtherPublisher('/b', gid, ticks)
    assert update(rivalry, other) is ConflictAction.NOTHING
    assert update(rivalry, other, now_ns=wait_ns - 1) is ConflictAction.NOTHING
    assert not rivalry.text
    # it gave way, and the next one has its own time
    assert update(rivalry, now_ns=wait_ns) is ConflictAction.NOTHING
    assert update(rivalry, other, now_ns=wait_ns + 1) is ConflictAction.NOTHING
    assert update(rivalry, other, now_ns=2 * wait_ns) is ConflictAction.NOTHING
    assert not rivalry.is_silent
    assert update(rivalry, other, now_ns=2 * wait_ns + 1) is ConflictAction.PAUSE


@pytest.mark.parametrize(('gid', 'is_silent'), zip(GIDS, [True, False], strict=True))
def test_where_no_edge_gives_way_both_pause_and_one_falls_silent(gid, is_silent):
    rivalry, other = CommandConflict(TOPIC, OWN), OtherPublisher('/b', gid)
    update(rivalry, other)
    assert update(rivalry, other, now_ns=UNKNOWN_NS) is ConflictAction.PAUSE
    assert rivalry.is_silent == is_silent
    assert '/b' in rivalry.text
    # it pauses once, an operator who resumes has been warned; neither ends after that
    assert update(rivalry, other, now_ns=2 * UNKNOWN_NS) is ConflictAction.NOTHING
    older = other._replace(ticks=99)
    assert update(rivalry, older, now_ns=2 * UNKNOWN_NS) is ConflictAction.NOTHING
    assert update(rivalry, now_ns=3 * UNKNOWN_NS) is ConflictAction.NOTHING
    # the robot may have been moved meanwhile: a silent one is restarted
    assert rivalry.is_silent == is_silent
    assert bool(rivalry.text) == is_silent


def test_of_any_number_one_goes_on():
    gids = [(n,) for n in range(5)]
    silent = []
    for own in gids:
        rivalry = CommandConflict(TOPIC, own)
        others = [OtherPublisher(f'/{gid}', gid) for gid in gids if gid != own]
        update(rivalry, *others)
        update(rivalry, *others, now_ns=UNKNOWN_NS)
        silent.append(rivalry.is_silent)
    assert silent.count(False) == 1


def test_an_edge_that_does_not_know_its_own_publisher_is_not_silent_for_it():
    assert not CommandConflict(TOPIC, ()).is_silent
