"""
How often a canary is wrong, over 2,200 rollouts with fixed seeds, looked at after every episode.

The stated rates are bounds for any number of looks, so no slack is given here; and tests that are
wrong on purpose show that these simulations find fault.
"""

from __future__ import annotations

from statistics import median

from canary_rig import plan, World
import numpy as np
import pytest

from lerobot_serve.bench import canary as bench
from lerobot_serve.bench.report import table
from lerobot_serve.router.canary import words
from lerobot_serve.router.canary.canary import Canary
from lerobot_serve.router.canary.evidence import Counts
from lerobot_serve.router.canary.guards import Limits
from lerobot_serve.router.canary.plan import Plan, Terms
from lerobot_serve.router.canary.simulation import (
    cumulated,
    fleet,
    naive,
    Rates,
    Result,
    rollout,
    sequential,
)
from lerobot_serve.router.canary.states import State

TERMS = Terms(settle_s=0)
# nothing but the one error that is looked for ends a rollout
NEVER_ROLLED_BACK = Terms(false_rollback=1e-9)
FOUR_STEPS = plan(episodes=20, seconds=0)
HALF = plan('50', '100', episodes=20, seconds=0)
CHAMPIONS = (0.3, 0.6, 0.9)


def rollouts(count: int, episodes: int, rates: Rates, steps: Plan, terms: Terms, **how):
    rng = np.random.default_rng(0)
    return [rollout(rng.random((2, episodes)), rates, steps, terms, **how) for _ in range(count)]


def promoted(results: list[Result]) -> int:
    return sum(result.first_promotion is not None for result in results)


def rolled_back(results: list[Result]) -> int:
    return sum(result.state is State.ROLLED_BACK for result in results)


@pytest.mark.parametrize('champion', CHAMPIONS)
@pytest.mark.parametrize(
    ('steps', 'terms', 'count', 'episodes'),
    [
        (FOUR_STEPS, TERMS, 150, 2000),
        (FOUR_STEPS, NEVER_ROLLED_BACK, 80, 2000),
        (HALF, NEVER_ROLLED_BACK, 150, 1500),
    ],
    ids=['as it is', 'never rolled back', 'half of them'],
)
def test_a_candidate_worse_by_the_margin_is_hardly_ever_promoted(
    champion, steps, terms, count, episodes
):
    rates = Rates(champion, champion - terms.margin)
    results = rollouts(count, episodes, rates, steps, terms)
    assert promoted(results) <= terms.false_promotion * count


@pytest.mark.parametrize('champion', CHAMPIONS)
@pytest.mark.parametrize('steps', [FOUR_STEPS, HALF], ids=['four steps', 'half of them'])
def test_an_equal_candidate_is_hardly_ever_rolled_back(champion, steps):
    results = rollouts(110, 1500, Rates(champion, champion), steps, TERMS)
    assert rolled_back(results) <= TERMS.false_rollback * len(results)


def test_rates_that_change_with_the_day_change_nothing():
    worse = rollouts(100, 2000, Rates(0.5, 0.4, swing=0.3, period=1000), HALF, NEVER_ROLLED_BACK)
    assert promoted(worse) <= NEVER_ROLLED_BACK.false_promotion * len(worse)
    equal = rollouts(60, 2000, Rates(0.5, 0.5, swing=0.3, period=1000), FOUR_STEPS, TERMS)
    assert rolled_back(equal) <= TERMS.false_rollback * len(equal)


# how many episodes of the candidate it takes, at the median: stated in docs/canary.md
@pytest.mark.parametrize(
    ('rates', 'most'),
    [
        (Rates(0.6, 0.9), 30),
        (Rates(0.8, 0.9), 80),
        (Rates(0.9, 0.9), 220),
    ],
)
def test_a_good_candidate_is_promoted_soon(rates, most):
    results = rollouts(40, 5000, rates, FOUR_STEPS, TERMS)
    assert median(result.first_promotion or 10**6 for result in results) <= most
    assert rolled_back(results) == 0


@pytest.mark.parametrize(
    ('rates', 'most'),
    [
        (Rates(0.9, 0.3), 15),
        (Rates(0.9, 0.6), 35),
        (Rates(0.8, 0.6), 100),
    ],
)
def test_a_bad_candidate_is_rolled_back_soon(rates, most):
    results = rollouts(40, 4000, rates, FOUR_STEPS, TERMS)
    ends = [r.candidate_episodes if r.state is State.ROLLED_BACK else 10**6 for r in results]
    assert median(ends) <= most
    assert promoted(results) == 0


@pytest.mark.parametrize('champion', CHAMPIONS)
def test_the_usual_test_looked_at_all_the_time_is_found_out(champion):
    worse = Rates(champion, champion - TERMS.margin)
    results = rollouts(60, 1500, worse, HALF, NEVER_ROLLED_BACK, judge=naive)
    assert promoted(results) > 2 * TERMS.false_promotion * len(results)
    equal = rollouts(60, 1500, Rates(champion, champion), HALF, TERMS, judge=naive)
    assert rolled_back(equal) > 2 * TERMS.false_rollback * len(equal)


@pytest.mark.parametrize('pooled', [False, True])
def test_episodes_of_other_days_would_mislead(pooled):
    # few episodes of the candidate on good days, many on bad ones; as good as the champion on all
    steps = plan('5:100:0', '50:1000:0', '100')
    rates = Rates(0.6, 0.6, swing=0.35, period=4000)
    results = rollouts(20, 6000, rates, steps, Terms(margin=0.3), pooled=pooled)
    assert rolled_back(results) == (20 if pooled else 0)


@pytest.mark.parametrize('settle_s', [0.0, 120.0])
def test_the_first_to_end_would_mislead(settle_s):
    # failures take 120 s, successes 20 s; the candidate is worse by the margin
    rng, wrong = np.random.default_rng(0), 0
    for _ in range(30):
        ends_s, arms, goods = fleet(
            rng,
            Rates(0.8, 0.7),
            robots=100,
            share_percent=50,
            success_s=20,
            failure_s=120,
            seconds=600,
        )
        counts = cumulated(arms[ends_s >= settle_s], goods[ends_s >= settle_s])
        passes, worse = sequential(Counts(*counts[:2]), Counts(*counts[2:]), TERMS, 1)
        wrong += passes < worse
    if settle_s:
        assert wrong <= TERMS.false_promotion * 30
    else:
        assert wrong > 0.9 * 30


def test_the_benchmark_tells_what_it_finds(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, 'EPISODES', 400)
    cases = bench.measure(5, tmp_path)
    assert [case.name for case in cases][:1] == ['champion 30%, candidate 20%']
    assert cases[0].goals == {'at most 5% promoted': True}
    assert cases[3].goals == {'at most 5% rolled back': True}
    soon = cases[-2]
    assert soon.name == 'champion 90%, candidate 30%'
    assert soon.counts == {'ever_promoted': 0, 'rolled_back': 5, 'undecided': 0}
    assert soon.parameters['median_episodes_to_promote'] is None
    assert 5 <= soon.parameters['median_episodes_to_roll_back'] <= 20
    assert len(cases[-1].series_ms['forecast']) == 5
    assert 'one look with a new outcome' in table(cases)


def test_the_benchmark_misses_its_goals_when_they_are_missed():
    wrong = [Result(State.PROMOTED, 9, 9, 99)] * 6 + [Result(State.ROLLED_BACK, None, 9, 99)] * 94
    assert bench.goals(Rates(0.6, 0.5), wrong) == {'at most 5% promoted': False}
    assert bench.goals(Rates(0.6, 0.6), wrong) == {'at most 5% rolled back': False}
    assert bench.goals(Rates(0.6, 0.55), wrong) == {}


@pytest.mark.parametrize('rates', [Rates(0.8, 0.95), Rates(0.8, 0.3), Rates(0.6, 0.6)])
def test_the_canary_itself_decides_as_its_simulation(rates, monkeypatch):
    # the slowest part of a look, and no part of a decision
    monkeypatch.setattr(words, 'episodes_to_decide', lambda *counts, **how: None)
    terms, steps = Terms(margin=0.2, settle_s=0), plan('25', '50', '100', seconds=0)
    for seed in range(3):
        draws = np.random.default_rng(seed).random((2, 250))
        canary = Canary(steps, terms, Limits(0, 0, 0, 0, 0, 0))
        assert drive(canary, draws, rates) == rollout(draws, rates, steps, terms)


def drive(canary: Canary, draws: np.ndarray, rates: Rates) -> Result:
    """Let a canary see the episodes of a rollout, one look each."""
    world = World(canary)
    world.look()
    candidates, first = 0, None
    for at, (place, luck) in enumerate(draws.T, start=1):
        is_candidate = place < canary.share_percent / 100
        slot, rate = (
            ('candidate', rates.candidate) if is_candidate else ('champion', rates.champion)
        )
        world.end(slot, int(luck < rate), int(luck >= rate))
        candidates += is_candidate
        happened = [entry.what for entry in world.look()]
        first = first or (candidates if 'promoted' in happened else None)
        if canary.state in (State.PROMOTED, State.ROLLED_BACK):
            return Result(canary.state, first, candidates, at)
    return Result(State.HELD, first, candidates, draws.shape[1])
