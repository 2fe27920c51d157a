# SPDX-License-Identifier: Apache-2.0
"""
How often a canary is wrong, over thousands of rollouts with fixed seeds, looked at after every
episode.

The stated rates are bounds for any number of looks, so no slack is given here; and tests that are
wrong on purpose show that these simulations find fault.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from support.router.canary_rig import plan, terms

from benchmarks.harness.rollout_simulation import (
    ArmBehavior,
    naive_z_test,
    RolloutResult,
    simulate_rollout,
    SimulatedFleet,
    SuccessRates,
)
from lerobot_serve.router.canary.evidence import trial as module
from lerobot_serve.router.canary.evidence.trial import EpisodeBlock, GAINS, promotion_gain
from lerobot_serve.router.canary.plan import CanaryPlan
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

pytestmark = pytest.mark.release

TERMS = RouterParameters()
# nothing but the one error that is looked for ends a rollout
NEVER_ROLLED_BACK = terms(false_rollback=1e-9)
FOUR_STEPS = plan(episodes=20, seconds=0)
HALF = plan('50', '100', episodes=20, seconds=0)
CHAMPIONS = (0.3, 0.6, 0.9)


def rollouts(
    count: int,
    episodes: int,
    rates: SuccessRates,
    steps: CanaryPlan,
    rules: RouterParameters,
    **how,
):
    rng = np.random.default_rng(0)
    return [
        simulate_rollout(rng.random((2, episodes)), rates, steps, rules, **how)
        for _ in range(count)
    ]


def promoted(results: list[RolloutResult]) -> int:
    return sum(result.first_promotion is not None for result in results)


def rolled_back(results: list[RolloutResult]) -> int:
    return sum(result.state is CanaryPhase.ROLLED_BACK for result in results)


@pytest.mark.parametrize('champion', CHAMPIONS)
@pytest.mark.parametrize(
    ('steps', 'rules', 'count', 'episodes'),
    [
        (FOUR_STEPS, TERMS, 150, 2000),
        (FOUR_STEPS, NEVER_ROLLED_BACK, 80, 2000),
        (HALF, NEVER_ROLLED_BACK, 150, 1500),
    ],
    ids=['as it is', 'never rolled back', 'half of them'],
)
def test_a_candidate_worse_by_the_margin_is_hardly_ever_promoted(
    champion, steps, rules, count, episodes
):
    rates = SuccessRates(champion, champion - rules.canary_margin)
    results = rollouts(count, episodes, rates, steps, rules)
    assert promoted(results) <= rules.canary_false_promotion * count


@pytest.mark.parametrize('champion', CHAMPIONS)
@pytest.mark.parametrize('steps', [FOUR_STEPS, HALF], ids=['four steps', 'half of them'])
def test_an_equal_candidate_is_hardly_ever_rolled_back(champion, steps):
    results = rollouts(110, 1500, SuccessRates(champion, champion), steps, TERMS)
    assert rolled_back(results) <= TERMS.canary_false_rollback * len(results)


def test_rates_that_change_with_the_day_change_nothing():
    worse = rollouts(
        300, 2000, SuccessRates(0.5, 0.4, swing=0.3, period=1000), HALF, NEVER_ROLLED_BACK
    )
    assert promoted(worse) <= NEVER_ROLLED_BACK.canary_false_promotion * len(worse)
    equal = rollouts(60, 2000, SuccessRates(0.5, 0.5, swing=0.3, period=1000), FOUR_STEPS, TERMS)
    assert rolled_back(equal) <= TERMS.canary_false_rollback * len(equal)


# how many episodes of the candidate it takes, at the median: stated in docs/canary.md
@pytest.mark.parametrize(
    ('rates', 'most'),
    [
        (SuccessRates(0.6, 0.9), 90),
        (SuccessRates(0.8, 0.9), 140),
        (SuccessRates(0.9, 0.9), 270),
    ],
)
def test_a_good_candidate_is_promoted_soon(rates, most):
    results = rollouts(40, 5000, rates, FOUR_STEPS, TERMS)
    assert median(result.first_promotion or 10**6 for result in results) <= most
    assert rolled_back(results) <= TERMS.canary_false_rollback * len(results)


@pytest.mark.parametrize(
    ('rates', 'most'),
    [
        (SuccessRates(0.9, 0.3), 15),
        (SuccessRates(0.9, 0.6), 40),
        (SuccessRates(0.8, 0.6), 100),
    ],
)
def test_a_bad_candidate_is_rolled_back_soon(rates, most):
    results = rollouts(40, 4000, rates, FOUR_STEPS, TERMS)
    ends = [r.candidate_episodes if r.state is CanaryPhase.ROLLED_BACK else 10**6 for r in results]
    assert median(ends) <= most
    assert promoted(results) == 0


@pytest.mark.parametrize('champion', CHAMPIONS)
def test_the_usual_test_looked_at_all_the_time_is_found_out(champion):
    worse = SuccessRates(champion, champion - TERMS.canary_margin)
    results = rollouts(60, 1500, worse, HALF, NEVER_ROLLED_BACK, test=naive_z_test)
    assert promoted(results) > 2 * TERMS.canary_false_promotion * len(results)
    equal = rollouts(60, 1500, SuccessRates(champion, champion), HALF, TERMS, test=naive_z_test)
    assert rolled_back(equal) > 2 * TERMS.canary_false_rollback * len(equal)


# what the examination of 0.1.0 found, and more: streams that are made to fool a canary. Each
# candidate is worse by the margin or more, and the comparison never rolls it back
SHORT = {'success_s': 20.0, 'failure_s': 120.0}


def robot_runs(run: int, robots: int = 10) -> SimulatedFleet:
    """Each robot succeeds or fails with the candidate for so many of its episodes."""
    return SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.8, robot_run=run), robots=robots)


STREAMS = {
    'operators abort the failures': SimulatedFleet(
        ArmBehavior(0.9), ArmBehavior(0.72, aborted=0.64)
    ),
    'all failures are aborted': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.8, aborted=1.0)),
    'a slot that loses 15 %': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.9, moved=0.15)),
    'failures move': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.9, moved=0.12)),
    'the champion moves': SimulatedFleet(ArmBehavior(0.9, moved=0.2), ArmBehavior(0.8)),
    'no verdict': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.9, unreported=0.12)),
    'no verdict for the champion': SimulatedFleet(
        ArmBehavior(0.9, unreported=0.2), ArmBehavior(0.8)
    ),
    'all verdicts hours late': SimulatedFleet(
        ArmBehavior(0.9, success_verdict_s=7200, failure_verdict_s=7200),
        ArmBehavior(0.8, success_verdict_s=7200, failure_verdict_s=7200),
        check_period_s=600,
    ),
    'failures hours late': SimulatedFleet(
        ArmBehavior(0.9), ArmBehavior(0.8, failure_verdict_s=14_400), check_period_s=600
    ),
    'the champion is late with good news': SimulatedFleet(
        ArmBehavior(0.9, success_verdict_s=7200), ArmBehavior(0.8), check_period_s=600
    ),
    'the short ones are good': SimulatedFleet(
        ArmBehavior(0.8, **SHORT), ArmBehavior(0.7, **SHORT), robots=100, check_period_s=5
    ),
    'failures in runs of 3': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.8, run=3)),
    'failures in runs of 5': SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.8, run=5)),
    'failures in runs of 5, 60 %': SimulatedFleet(ArmBehavior(0.6), ArmBehavior(0.5, run=5)),
    'runs of 5 at 5 %': SimulatedFleet(
        ArmBehavior(0.9),
        ArmBehavior(0.8, run=5),
        share_percent=5,
        episodes=5000,
        check_period_s=600,
    ),
    'runs of both': SimulatedFleet(ArmBehavior(0.9, run=5), ArmBehavior(0.8, run=5)),
    'a robot fails in runs of 5': robot_runs(5),
    'a robot fails in runs of 10': robot_runs(10),
    'a robot fails in runs of 20': robot_runs(20),
    '50 robots fail in runs of 10': robot_runs(10, robots=50),
    '50 robots fail in runs of 20': robot_runs(20, robots=50),
    'robots fail in runs of 10 with both': replace(
        robot_runs(10), champion=ArmBehavior(0.9, robot_run=10)
    ),
    'cameras slip for 10 episodes': SimulatedFleet(
        ArmBehavior(0.9), ArmBehavior(0.9, slip=10, slipped=0.11)
    ),
    'failures in runs of 10, hours late': replace(
        robot_runs(10),
        candidate=ArmBehavior(0.8, robot_run=10, failure_verdict_s=14_400),
        check_period_s=600,
    ),
}
LABS, MORE_LABS = 40, 100


@pytest.mark.parametrize('name', STREAMS)
def test_a_stream_that_is_made_to_fool_promotes_as_rarely_as_stated(name):
    # where the rate is near what is stated, so few say little
    labs = MORE_LABS if 'runs' in name and '5 %' not in name else LABS
    assert promoted_labs(STREAMS[name], labs=labs) <= TERMS.canary_false_promotion * labs


def promoted_labs(
    lab: SimulatedFleet, rules: RouterParameters = NEVER_ROLLED_BACK, labs: int = LABS
) -> int:
    return promoted([lab.run(np.random.default_rng(1000 + seed), rules) for seed in range(labs)])


def verdicts_alone(block: EpisodeBlock) -> float:
    """A comparison of episodes with a verdict alone, as 0.1.0 had it."""
    rates = [
        arm.success / (arm.success + arm.failure) if arm.success + arm.failure else 0.5
        for arm in (block.candidate, block.champion)
    ]
    return rates[0] - rates[1]


@pytest.mark.parametrize(
    'name',
    ['operators abort the failures', 'a slot that loses 15 %', 'failures hours late'],
)
def test_a_comparison_of_verdicts_alone_is_found_out(name, monkeypatch):
    monkeypatch.setitem(GAINS, 'promotion', verdicts_alone)
    assert promoted_labs(STREAMS[name]) > 10 * TERMS.canary_false_promotion * LABS
    monkeypatch.setitem(GAINS, 'promotion', promotion_gain)
    assert promoted_labs(STREAMS[name]) <= TERMS.canary_false_promotion * LABS


@pytest.mark.parametrize('robots', [10, 50])
def test_runs_of_one_robot_would_promote_if_each_failure_counted(robots, monkeypatch):
    monkeypatch.setattr(module, 'common_factor', lambda **_: 1.0)
    assert promoted_labs(robot_runs(20, robots)) > 0.1 * LABS


@pytest.mark.parametrize('run', [5, 10, 20])
def test_runs_of_one_robot_roll_an_equal_candidate_back_no_more_often(run, monkeypatch):
    lab = replace(robot_runs(run), candidate=ArmBehavior(0.9, robot_run=run))
    ends = [lab.run(np.random.default_rng(seed), TERMS) for seed in range(MORE_LABS)]
    assert rolled_back(ends) <= TERMS.canary_false_rollback * MORE_LABS
    monkeypatch.setattr(module, 'common_factor', lambda **_: 1.0)
    ends = [lab.run(np.random.default_rng(seed), TERMS) for seed in range(MORE_LABS)]
    assert rolled_back(ends) > 0.1 * MORE_LABS


@pytest.mark.parametrize(
    'lab',
    [
        SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.9)),
        SimulatedFleet(ArmBehavior(0.9, unreported=0.02), ArmBehavior(0.9, unreported=0.02)),
        SimulatedFleet(ArmBehavior(0.9, aborted=1.0), ArmBehavior(0.9, aborted=1.0)),
        SimulatedFleet(
            ArmBehavior(0.8, success_verdict_s=7200, failure_verdict_s=7200),
            ArmBehavior(0.9, success_verdict_s=7200, failure_verdict_s=7200),
            check_period_s=600,
        ),
    ],
    ids=['equal', 'few without a verdict', 'aborted alike', 'better, verdicts hours late'],
)
def test_a_good_candidate_of_a_small_lab_is_promoted(lab):
    ends = [lab.run(np.random.default_rng(seed), TERMS) for seed in range(LABS)]
    assert rolled_back(ends) <= TERMS.canary_false_rollback * LABS
    assert promoted(ends) >= 0.85 * LABS
