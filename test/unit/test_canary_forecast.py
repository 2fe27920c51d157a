"""About how many more episodes: the forecast is kept, or says that nobody knows."""

from __future__ import annotations

from canary_rig import plan, started
import pytest

from lerobot_serve.router.canary.evidence import Counts
from lerobot_serve.router.canary.forecast import episodes_to_decide
from lerobot_serve.router.canary.plan import Terms
from lerobot_serve.router.canary.states import State


@pytest.mark.parametrize('share', [5, 50])
def test_the_forecast_is_kept(share):
    champion, candidate, terms = Counts(80, 20), Counts(40, 10), Terms(margin=0.1, settle_s=0)
    forecast = episodes_to_decide(champion, candidate, share_percent=share, terms=terms, trials=3)
    assert forecast.promoted
    others = (100 - share) // share
    world = started(plan=plan(str(share), '100'), terms=terms)
    world.end('candidate', 40, 10)
    world.end('champion', 80, 20)
    world.wait(100)
    more = 0
    while world.canary.state is not State.PROMOTED:
        world.end('candidate', 4, 1)
        world.end('champion', 4 * others, others)
        world.look()
        more += 5
    assert forecast.episodes == pytest.approx(more, rel=0.15)


def test_at_a_small_share_the_champion_is_known_sooner():
    few, many = (
        episodes_to_decide(
            Counts(80, 20), Counts(40, 10), share_percent=share, terms=Terms(), trials=3
        )
        for share in (5, 50)
    )
    assert few.episodes < 0.8 * many.episodes


def test_too_few_to_forecast_is_said():
    world = started(plan=plan(episodes=5), terms=Terms(settle_s=0))
    world.end('candidate', 5)
    world.end('champion', 50, 10)
    world.wait(100)
    assert 'Too few episodes to say how many more are needed' in world.canary.text


def test_what_will_not_be_decided_is_said():
    world = started(terms=Terms(margin=0.0, settle_s=0))
    world.end('candidate', 500, 500)
    world.end('champion', 5000, 5000)
    world.wait(100)
    assert 'more episodes of the candidate will not decide it' in world.canary.text
    assert 'promote or roll back by hand' in world.canary.text
