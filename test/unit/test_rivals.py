"""Two edge controllers on one command topic."""

from __future__ import annotations

import pytest

from lerobot_serve.edge.rivals import refusal, Rivalry

TOPIC = '/robot_1/command'


def test_one_that_starts_is_refused_and_the_other_is_named():
    assert refusal(TOPIC, []) == ''
    text = refusal(TOPIC, [('/robot_1/edge_controller', (1,))])
    assert '/robot_1/edge_controller' in text
    assert TOPIC in text


@pytest.mark.parametrize(('other', 'is_silent'), [((1,), True), ((9,), False)])
def test_of_two_that_meet_both_pause_and_one_falls_silent(other, is_silent):
    rivalry = Rivalry(TOPIC, (5,))
    assert not rivalry.look([])
    assert rivalry.look([('/b', other)])
    assert rivalry.is_silent == is_silent
    assert '/b' in rivalry.text
    # it pauses once: who resumes has been warned
    assert not rivalry.look([('/b', other)])
    assert not rivalry.look([])
    # the robot may have been moved meanwhile: a silent one is restarted
    assert rivalry.is_silent == is_silent
    assert bool(rivalry.text) == is_silent


def test_of_any_number_one_goes_on():
    gids = [(n,) for n in range(5)]
    silent = []
    for own in gids:
        rivalry = Rivalry(TOPIC, own)
        rivalry.look([(f'/{gid}', gid) for gid in gids if gid != own])
        silent.append(rivalry.is_silent)
    assert silent.count(False) == 1


def test_an_edge_that_does_not_know_its_own_publisher_is_not_silent_for_it():
    assert not Rivalry(TOPIC, ()).is_silent
