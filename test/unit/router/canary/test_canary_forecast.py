# SPDX-License-Identifier: Apache-2.0
"""About how many more episodes: the forecast is kept, or says that nobody knows."""

from __future__ import annotations

from statistics import median

import numpy as np
import pytest
from support.router.canary_rig import plan, started

from lerobot_serve.router.canary.evidence.forecast import episodes_to_decide
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.states import CanaryPhase


def seen(share: int, **ends: int):
    """Return a world at this share in which both arms ended so, and its terms."""
    others = (100 - share) // share
    world = started(plan=plan(str(share), '100'), terms=Terms(margin=0.1, false_rollback=1e-6))
    world.end('candidate', **ends)
    world.end('champion', **{what: count * others for what, count in ends.items()})
    world.wait(100)
    return world


def forecast(world, share: int):
    return episodes_to_decide(
        world.canary.record.trial, share_percent=share, terms=world.canary.terms, trials=1
    )


@pytest.mark.slow
@pytest.mark.parametrize('share', [5, 50])
def test_the_forecast_is_kept(share):
    told = forecast(seen(share, success=40, failure=10), share)
    assert told.promoted
    found = median(more_until_promoted(share, seed) for seed in range(9))
    assert told.episodes == pytest.approx(found, rel=0.3)


def more_until_promoted(share: int, seed: int) -> int:
    """Return how many episodes of the candidate it takes at 80 % of both."""
    world, rng, more = seen(share, success=40, failure=10), np.random.default_rng(seed), 0
    while world.canary.state is not CanaryPhase.PROMOTED:
        for _ in range(5):
            for arm, count in (('candidate', 1), ('champion', (100 - share) // share)):
                good = int(rng.binomial(count, 0.8))
                world.end(arm, good, count - good)
            world.poll()
        more += 5
    return more


@pytest.mark.parametrize('share', [5, 50])
def test_a_bad_candidate_is_forecast_to_be_rolled_back(share):
    world = started(plan=plan(str(share), '100'), terms=Terms(false_rollback=1e-6))
    world.end('candidate', 7, 5)
    world.end('champion', 18, 2)
    world.poll()
    assert not forecast(world, share).promoted


def test_at_a_small_share_the_champion_is_known_sooner():
    few, many = (forecast(seen(share, success=40, failure=10), share) for share in (5, 50))
    assert few.episodes < many.episodes


def test_too_few_to_forecast_is_said():
    world = started(plan=plan(episodes=5), terms=Terms())
    world.end('candidate', 5)
    world.end('champion', 50, 10)
    world.wait(100)
    assert 'Too few episodes for a forecast' in world.canary.text


def test_what_will_not_be_decided_is_said():
    world = started(terms=Terms(margin=0.0))
    world.end('candidate', 500, 500)
    world.end('champion', 5000, 5000)
    world.wait(100)
    assert 'more episodes of the candidate do not decide with' in world.canary.text
    assert 'promote or roll back by hand' in world.canary.text
