# SPDX-License-Identifier: Apache-2.0
"""How far a divergence is in spreads of the policy that drives: two draws of it tell."""

from __future__ import annotations

from math import inf, isnan, nan, sqrt

import pytest
from support.router.shadow_rig import CALM, key, LIVE, ramp, run, SHADOW, World

from lerobot_serve.contract.schema import Status
from lerobot_serve.router.shadow.divergence import POLICIES_LIMIT, PolicySpread, WINDOW_DRAWS


def test_before_the_first_draw_it_is_not_known():
    spread = PolicySpread()
    assert isnan(spread.of(LIVE))
    assert isnan(spread.in_spreads(LIVE, 5, 1.0))


def test_draws_are_pooled():
    spread = PolicySpread()
    for rms in (3.0, 4.0, nan, inf, -1.0):
        spread.add(LIVE, rms)
    assert spread.of(LIVE) == sqrt(25 / 2)
    assert spread.in_spreads(LIVE, 5, 1.0) == 1 / sqrt(25 / 2)
    assert isnan(spread.of('another'))


def test_a_policy_that_draws_nothing_has_none():
    spread = PolicySpread()
    spread.add(LIVE, 1.0)
    assert isnan(spread.in_spreads(LIVE, 0, 1.0))
    assert isnan(spread.in_spreads(LIVE, 5, nan))


def test_draws_that_are_always_the_same_are_no_measure():
    spread = PolicySpread()
    spread.add(LIVE, 0.0)
    assert spread.of(LIVE) == 0.0
    assert isnan(spread.in_spreads(LIVE, 5, 1.0))


def test_the_window_forgets():
    spread = PolicySpread()
    spread.add(LIVE, 1e6)
    for _ in range(WINDOW_DRAWS):
        spread.add(LIVE, 2.0)
    assert spread.of(LIVE) == 2.0


def test_of_too_many_policies_the_one_unheard_for_longest_is_forgotten():
    spread = PolicySpread()
    for n in range(POLICIES_LIMIT):
        spread.add(f'policy@{n}', 1.0)
    spread.add('policy@0', 1.0)
    spread.add('one@more', 1.0)
    assert isnan(spread.of('policy@1'))
    assert not isnan(spread.of('policy@0'))


# in a book


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)


def test_divergence_is_told_in_spreads_of_the_policy_that_drives(world):
    (first,) = world.sample(1, CALM, CALM + 0.5, seed=5)
    assert isnan(first.divergence_in_spreads)
    (second,) = world.sample(11, CALM, CALM + 0.5, seed=7, second=CALM + 0.25)
    assert second.divergence_in_spreads == pytest.approx(2.0)
    (third,) = world.sample(21, CALM, CALM + 1.0, seed=9)
    assert third.divergence_in_spreads == pytest.approx(4.0)
    summary = world.book.summary()
    assert summary.divergence_in_spreads_mean == pytest.approx(3.0)
    assert world.book.qualification.of(SHADOW).spreads_count == 2


def test_a_policy_that_draws_nothing_has_no_spread(world):
    world.sample(1, CALM, CALM + 0.5, seed=5, second=CALM + 0.25)
    (found,) = world.sample(11, CALM, CALM + 0.5, seed=0)
    assert isnan(found.divergence_in_spreads)


USELESS_DRAWS = {
    'the same draw again': {'rows': CALM, 'seed': 5},
    'another policy': {'rows': CALM, 'seed': 6, 'policy': 'another@1'},
    'other actions': {'rows': ramp(0, 0, 5, columns=3), 'seed': 6},
    'too few rows': {'rows': CALM[:1], 'seed': 6},
}


@pytest.mark.parametrize('draw', USELESS_DRAWS.values(), ids=USELESS_DRAWS)
def test_a_second_draw_that_tells_nothing_is_counted(world, draw):
    world.request(key())
    world.live(key(), CALM, seed=5)
    world.shadow(key(), CALM)
    world.second(key(), **draw)
    world.executed(key(2), run(key(), 1, CALM[1:]))
    world.executed(key(3), run(key(2), 0, CALM[:1]))
    (found,) = world.poll()
    assert isnan(found.divergence_in_spreads)
    assert world.drops == {'second_draw_unusable': 1}


def test_a_second_draw_that_failed_is_counted(world):
    world.request(key())
    world.second(key(), (), status=Status.POLICY_ERROR)
    assert world.drops == {'second_draw_failed': 1}
