# SPDX-License-Identifier: Apache-2.0
"""The evidence of a rollout and of its watch: valid for any rates and any time to stop."""

from __future__ import annotations

from itertools import product
import math
from statistics import median

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.router.canary_rig import plan, started, terms

from lerobot_serve.router.canary.evidence.forecast import episodes_to_decide
from lerobot_serve.router.canary.evidence.sequential_test import log_mean, stakes, Wager
from lerobot_serve.router.canary.evidence.success_rate import (
    above_evidence,
    below_evidence,
    FRACTIONS,
    worse_evidence,
)
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

MARGIN = st.sampled_from((0.0, 0.01, 0.1, 0.3, 0.5))
GAIN = st.floats(-1.0, 1.0)
GAINS = st.lists(GAIN, max_size=30)


def wagered(gains: list[float], margin: float) -> Wager:
    wager = Wager(margin)
    for gain in gains:
        wager.settle(gain)
    return wager


@given(MARGIN, st.lists(st.tuples(GAIN, st.floats(0.01, 1.0)), min_size=1, max_size=6))
def test_under_the_null_no_stake_is_expected_to_win(margin, cases):
    # the step of the proof on which everything rests, for any distribution of the gain
    gains, chances = np.array(cases).T
    chances /= chances.sum()
    # as much mass on -1 as brings the expected gain down to the null
    mean = float((gains * chances).sum())
    mass = max(0.0, (mean + margin) / (mean + 1)) if mean > -1 else 0.0
    gains, chances = np.append(gains, -1.0), np.append(chances * (1 - mass), mass)
    assert float((gains * chances).sum()) <= -margin + 1e-9
    for stake in stakes(margin):
        factors = 1 + stake * (gains + margin)
        assert factors.min() > 0
        assert float((factors * chances).sum()) <= 1 + 1e-9


@given(MARGIN, GAINS, st.data())
def test_a_gain_that_is_taken_too_low_gives_evidence_that_is_too_low(margin, gains, data):
    lower = [data.draw(st.floats(-1.0, gain)) for gain in gains]
    assert Wager(margin).highest(lower) <= Wager(margin).highest(gains)
    assert log_mean(wagered(lower, margin).wealth) <= log_mean(wagered(gains, margin).wealth)


@given(MARGIN, GAINS, GAINS)
def test_settled_blocks_and_blocks_ahead_count_alike(margin, settled, ahead):
    both = wagered(settled + ahead, margin)
    some = wagered(settled, margin)
    steps = [log_mean(wagered(settled + ahead[: i + 1], margin).wealth) for i in range(len(ahead))]
    assert some.highest(ahead) == pytest.approx(max(steps, default=-math.inf))
    assert some.wealth == wagered(settled, margin).wealth
    assert len(both.wealth) == len(stakes(margin))


def test_without_a_block_there_is_no_evidence():
    assert log_mean(Wager(0.1).wealth) == 0.0
    assert Wager(0.1).highest([]) == -math.inf


@given(GAINS)
def test_a_wider_margin_is_easier_to_show(gains):
    found = [log_mean(wagered(gains, m).wealth) for m in (0.0, 0.02, 0.1, 0.3, 0.5)]
    assert found == sorted(found)


@given(st.lists(st.floats(-700, 700), min_size=1, max_size=5))
def test_the_mean_of_logs_is_that_of_their_numbers(logs):
    top = max(logs)
    direct = math.log(np.mean([math.exp(each - top) for each in logs])) + top
    assert log_mean(logs) == pytest.approx(direct, abs=1e-9)


BLOCKS = 9


def worst_case(margin: float, level: float, *, paid: float) -> float:
    """
    Return the probability to reach the level when an adversary picks how each gain falls, within
    the null and knowing all gains before, and when to stop. Gains are -1, 0 or 1. `paid` is the
    margin that the wager adds to each gain.
    """
    stake_list = stakes(margin)
    grid = np.linspace(0, 1, 11)
    chances = [(low, (1 - low) * zero) for low in grid for zero in np.linspace(0, 1, 6)]
    allowed = [
        (low, zero, 1 - low - zero)
        for low, zero in chances
        if 1 - 2 * low - zero <= -margin + 1e-9
    ]

    def value(left: int, wealth: tuple[float, ...]) -> float:
        if sum(wealth) / len(wealth) >= level:
            return 1.0
        if left == 0:
            return 0.0
        nexts = [
            value(left - 1, tuple(round(w * (1 + s * (g + paid)), 12) for w, s in zip(
                wealth, stake_list, strict=True)))
            for g in (-1, 0, 1)
        ]  # fmt: skip
        return max(sum(p * v for p, v in zip(ps, nexts, strict=True)) for ps in allowed)

    return value(BLOCKS, (1.0,) * len(stake_list))


@pytest.mark.parametrize('margin', [0.0, 0.2])
def test_no_choice_of_what_happens_next_breaks_the_bound(margin):
    # exact, without chance; and a wager that pays too much is found out by the same computation
    alpha = 0.3
    right = worst_case(margin, 1 / alpha, paid=margin)
    wrong = worst_case(margin, 1 / alpha, paid=margin + 0.2)
    assert 0 < right <= alpha < wrong


LEVEL = math.log(20)
RATES = st.floats(0.0, 1.0)
COUNTS = st.integers(0, 400)


@given(RATES, RATES, st.integers(1, 6))
def test_a_bet_wins_nothing_while_its_null_is_true(rate, tested, episodes):
    """Exactly, over all sequences: the expectation of e is at most 1, whatever the true rate."""
    above = below = 0.0
    for ends in product((0, 1), repeat=episodes):
        good = sum(ends)
        chance = rate**good * (1 - rate) ** (episodes - good)
        at = np.array([tested])
        above += chance * math.exp(above_evidence(good, episodes - good, at)[0])
        below += chance * math.exp(below_evidence(good, episodes - good, at)[0])
    if rate <= tested:
        assert above <= 1 + 1e-6
    if rate >= tested:
        assert below <= 1 + 1e-6


@given(COUNTS, COUNTS)
def test_the_bets_are_monotonic_so_that_the_grid_is_a_bound(good, bad):
    rates = np.linspace(0.0, 1.0, 101)
    assert (np.diff(above_evidence(good, bad, rates)) <= 1e-9).all()
    assert (np.diff(below_evidence(good, bad, rates)) >= -1e-9).all()


@settings(max_examples=200)
@given(COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0.0, 0.5), RATES)
def test_the_evidence_is_at_most_that_of_any_rate_of_the_champion(a, b, c, d, margin, rate):
    known = above_evidence(a, b, np.array([rate]))[0]
    known += below_evidence(c, d, np.array([max(0.0, rate - margin)]))[0]
    assert worse_evidence((a, b), (c, d), margin) <= known + 1e-9


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.floats(0.0, 0.5))
def test_an_end_that_is_better_never_adds_evidence(a, b, c, d, margin):
    before = worse_evidence((a, b + 1), (c, d + 1), margin)
    assert worse_evidence((a, b + 1), (c + 1, d), margin) <= before + 1e-9
    assert worse_evidence((a + 1, b), (c, d + 1), margin) >= before - 1e-9
    assert worse_evidence((a, b + 1), (c, d + 1), min(1.0, margin + 0.1)) <= before + 1e-9


def test_without_episodes_there_is_no_evidence():
    assert worse_evidence((0, 0), (0, 0), 0.1) == pytest.approx(0.0)
    assert worse_evidence((250, 0), (0, 0), 0.1) < LEVEL
    assert worse_evidence((0, 0), (0, 400), 0.1) < LEVEL


@pytest.mark.parametrize(('success', 'at_most'), [(0.0, 8), (0.4, 80), (0.5, 200)])
def test_a_collapse_is_found_soon(success, at_most):
    """Failures spread evenly; the champion had 80 % of 250."""
    for episodes in range(1, at_most + 1):
        good = round(episodes * success)
        if worse_evidence((200, 50), (good, episodes - good), 0.1) >= LEVEL:
            return
    pytest.fail(f'nothing found in {at_most} episodes')


def first_alarm(rng: np.random.Generator, champion: float, candidate: float) -> bool:
    """Return whether any of 500 episodes rolls back, as the router looks after each."""
    good = int(rng.binomial(120, champion))
    ends = rng.random(500) < candidate
    sums = np.cumsum(ends)
    return any(
        worse_evidence((good, 120 - good), (int(n), i + 1 - int(n)), 0.1) >= LEVEL
        for i, n in enumerate(sums)
    )


@pytest.mark.parametrize(
    'champion', [*(pytest.param(p, marks=pytest.mark.release) for p in (0.5, 0.8)), 0.95]
)
def test_one_that_is_not_worse_by_the_margin_is_seldom_rolled_back(champion):
    rng = np.random.default_rng(7)
    alarms = sum(first_alarm(rng, champion, champion - 0.1) for _ in range(40))
    # at most 5 % are allowed, 2 of 40; the seed is fixed
    assert alarms <= 6


def test_no_stake_can_lose_everything():
    assert FRACTIONS.min() > 0
    assert FRACTIONS.max() < 1


def seen(share: int, **ends: int):
    """Return a world at this share in which both arms ended so, and its terms."""
    others = (100 - share) // share
    world = started(
        plan=plan(str(share), '100'),
        rules=terms(margin=0.1, false_rollback=1e-6),
    )
    world.end('candidate', **ends)
    world.end('champion', **{what: count * others for what, count in ends.items()})
    world.wait(100)
    return world


def forecast(world, share: int):
    return episodes_to_decide(
        world.canary.record.trial, share_percent=share, rules=world.canary.rules, trials=1
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
    world = started(plan=plan(str(share), '100'), rules=terms(false_rollback=1e-6))
    world.end('candidate', 7, 5)
    world.end('champion', 18, 2)
    world.poll()
    assert not forecast(world, share).promoted


def test_at_a_small_share_the_champion_is_known_sooner():
    few, many = (forecast(seen(share, success=40, failure=10), share) for share in (5, 50))
    assert few.episodes < many.episodes


def test_too_few_to_forecast_is_said():
    world = started(plan=plan(episodes=5), rules=RouterParameters())
    world.end('candidate', 5)
    world.end('champion', 50, 10)
    world.wait(100)
    assert 'Too few episodes for a forecast' in world.canary.text


def test_what_will_not_be_decided_is_said():
    world = started(rules=terms(margin=0.0))
    world.end('candidate', 500, 500)
    world.end('champion', 5000, 5000)
    world.wait(100)
    assert 'more episodes of the candidate do not decide with' in world.canary.text
    assert 'promote or roll back by hand' in world.canary.text
