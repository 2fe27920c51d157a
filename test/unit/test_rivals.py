"""Two edge controllers on one command topic."""

from __future__ import annotations

import pytest

from lerobot_serve.edge.rivals import Finding, GRACE_NS, refusal, Rivalry

TOPIC = '/robot_1/command'


def test_one_that_starts_is_refused_and_the_other_is_named():
    assert refusal(TOPIC, []) == ''
    text = refusal(TOPIC, [('/robot_1/edge_controller', (1,))])
    assert '/robot_1/edge_controller' in text
    assert TOPIC in text


def update(rivalry: Rivalry, *gids: tuple[int, ...], now_ns: int = 0) -> Finding:
    rivals = [(f'/edge_{gid[0]}', gid) for gid in gids]
    return rivalry.update(rivals, has_commanded=True, now_ns=now_ns)


@pytest.mark.parametrize('other', [(1,), (9,)])
def test_one_that_has_not_commanded_gives_way_at_once(other):
    rivalry = Rivalry(TOPIC, (5,))
    assert rivalry.update([], has_commanded=False, now_ns=0) is Finding.NOTHING
    finding = rivalry.update([('/b', other)], has_commanded=False, now_ns=1)
    assert finding is Finding.GIVE_WAY


@pytest.mark.parametrize('other', [(1,), (9,)])
def test_one_that_has_commanded_waits_for_the_other_to_give_way(other):
    rivalry = Rivalry(TOPIC, (5,))
    assert update(rivalry, other) is Finding.NOTHING
    assert update(rivalry, other, now_ns=GRACE_NS - 1) is Finding.NOTHING
    assert not rivalry.text
    # it gave way, and the next one has its own second
    assert update(rivalry, now_ns=GRACE_NS) is Finding.NOTHING
    assert update(rivalry, other, now_ns=GRACE_NS + 1) is Finding.NOTHING
    assert update(rivalry, other, now_ns=2 * GRACE_NS) is Finding.NOTHING
    assert not rivalry.is_silent
    assert update(rivalry, other, now_ns=2 * GRACE_NS + 1) is Finding.PAUSE


@pytest.mark.parametrize(('other', 'is_silent'), [((1,), True), ((9,), False)])
def test_of_two_that_have_commanded_both_pause_and_one_falls_silent(other, is_silent):
    rivalry = Rivalry(TOPIC, (5,))
    update(rivalry, other)
    assert update(rivalry, other, now_ns=GRACE_NS) is Finding.PAUSE
    assert rivalry.is_silent == is_silent
    assert f'/edge_{other[0]}' in rivalry.text
    # it pauses once: an operator who resumes has been warned
    assert update(rivalry, other, now_ns=2 * GRACE_NS) is Finding.NOTHING
    assert update(rivalry, now_ns=3 * GRACE_NS) is Finding.NOTHING
    # the robot may have been moved meanwhile: a silent one is restarted
    assert rivalry.is_silent == is_silent
    assert bool(rivalry.text) == is_silent


def test_of_any_number_one_goes_on():
    gids = [(n,) for n in range(5)]
    silent = []
    for own in gids:
        rivalry = Rivalry(TOPIC, own)
        others = [gid for gid in gids if gid != own]
        update(rivalry, *others)
        update(rivalry, *others, now_ns=GRACE_NS)
        silent.append(rivalry.is_silent)
    assert silent.count(False) == 1


def test_an_edge_that_does_not_know_its_own_publisher_is_not_silent_for_it():
    assert not Rivalry(TOPIC, ()).is_silent
