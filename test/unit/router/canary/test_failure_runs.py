# SPDX-License-Identifier: Apache-2.0
"""Failures of one robot, one after the other, count as the fewer reasons that they have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs, UNSET
import numpy as np
import pytest

from benchmarks.harness.rollout_simulation import (
    ArmBehavior,
    evidence,
    factors,
    SimulatedFleet,
)
from lerobot_serve.router.canary.evidence import failure_runs as module
from lerobot_serve.router.canary.evidence import trial as trial_module
from lerobot_serve.router.canary.evidence.failure_runs import common_factor, FailureRuns
from lerobot_serve.router.canary.evidence.trial import StepTrial
from lerobot_serve.router.canary.facts import ARMS, BEGUN, ENDS, EpisodeEvent
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.parameters import RouterParameters

# S success, F failure, A aborted, m moved, u unreported
WORDS = {'S': 'success', 'F': 'failure', 'A': 'aborted', 'm': 'moved', 'u': 'unreported'}


def played(**robots: str) -> FailureRuns:
    """Return the runs of robots whose episodes end so, in their order; '.' stays open."""
    runs = FailureRuns()
    for robot, letters in robots.items():
        for number, letter in enumerate(letters):
            name = f'{robot} {number}'
            runs.begin(name, robot)
            if letter in WORDS:
                runs.end(name, WORDS[letter])
    return runs


@pytest.mark.parametrize(
    ('letters', 'failures', 'squares'),
    [
        ('SSSS', 0, 0),
        ('FSFSF', 3, 3),
        ('SFFFS', 3, 9),
        ('FAF', 3, 9),
        ('FFSFFF', 5, 13),
        # an unknown end shows nothing: a run continues behind it
        ('FmuF', 2, 4),
        ('SmuS', 0, 0),
        # an open one holds back what comes after it
        ('F.F', 1, 1),
    ],
)
def test_runs_are_counted_by_length(letters, failures, squares):
    runs = played(r=letters)
    assert (runs.failures, runs.squares) == (failures, squares)


def test_each_robot_has_its_own_runs():
    runs = played(a='FFSS', b='FFSS')
    assert (runs.failures, runs.squares) == (4, 8)


def test_an_outcome_that_comes_late_counts_at_its_place():
    runs = FailureRuns()
    for name in 'abc':
        runs.begin(name, 'r')
    for name in 'cab':
        runs.end(name, 'failure' if name != 'b' else 'success')
    # failure, success, failure: no run
    assert (runs.failures, runs.squares) == (2, 2)


def test_an_episode_that_many_have_overtaken_holds_nothing_back():
    runs = played(r='F.' + 'F' * (module.OVERTAKEN_LIMIT - 1))
    assert runs.failures == 1
    runs.begin('next', 'r')
    runs.end('next', 'failure')
    assert runs.squares == (module.OVERTAKEN_LIMIT + 1) ** 2
    # when its outcome comes, it is of no run any more
    runs.end('r 1', 'failure')
    assert runs.failures == module.OVERTAKEN_LIMIT + 1


def test_without_failures_runs_are_assumed_and_single_failures_disprove_them():
    assert played(r='S' * 1000).factor(5) == pytest.approx(5, rel=0.01)
    assert played(r='S' * 1000).factor(1) == 1
    assert played(r=('S' * 9 + 'F') * 30).factor(5) < 1.1
    assert played(r=('S' * 90 + 'F' * 10) * 30).factor(5) > 7


def test_a_candidate_that_always_fails_is_no_run():
    assert played(r='F' * 30).factor(1) == 1


def test_a_failure_of_an_unknown_robot_is_one_of_an_assumed_run():
    runs = FailureRuns()
    for number in range(100):
        runs.begin(str(number), '')
        runs.end(str(number), 'failure' if number % 10 == 0 else 'success')
    assert runs.factor(5) == pytest.approx(4.1, abs=0.1)


@pytest.mark.parametrize('mean', [1, 2, 5, 20])
def test_the_factor_is_that_of_the_variance_of_long_streams(mean):
    """Runs of memoryless lengths with a correlation r: theory says (1 + r) / (1 - r)."""
    rng = np.random.default_rng(7)
    renewed, results = rng.random(40_000) < 1 / mean, rng.random(40_000) < 0.95
    letters, is_good = [], True
    for is_new, result in zip(renewed.tolist(), results.tolist(), strict=True):
        is_good = result if is_new else is_good
        letters.append('S' if is_good else 'F')
    correlation = 1 - 1 / mean
    expected = (1 + correlation) / (1 - correlation)
    assert played(r=''.join(letters)).factor(1) == pytest.approx(expected, rel=0.2)


def test_the_arm_with_fewer_episodes_weighs_more():
    runs, steady = played(r='SSSSFFFF' * 5), played(r='SSSSSSSF' * 100)
    few = common_factor(runs, steady, 1)
    assert few == pytest.approx(runs.factor(1), rel=0.1)
    assert common_factor(steady, runs, 1) == pytest.approx(few)
    assert common_factor(runs, runs, 1) == runs.factor(1)


def test_robots_are_bounded(monkeypatch):
    monkeypatch.setattr(module, 'ROBOTS_LIMIT', 3)
    runs = played(a='F.', b='F', c='F', d='F', e='F')
    assert [row[0] for row in runs.stored().robots] == ['c', 'd', 'e']
    runs.end('a 1', 'failure')
    assert runs.failures == 5


EVENTS = st.lists(
    st.tuples(st.sampled_from(ARMS), st.sampled_from(['', 'r1', 'r2']), st.sampled_from(ENDS)),
    max_size=40,
)


@given(EVENTS, st.randoms(use_true_random=False))
def test_a_restart_changes_nothing(episodes, rng):
    first, again = StepTrial(0.1, 5), StepTrial(0.1, 5)
    begins = [EpisodeEvent(str(i), BEGUN, arm, r) for i, (arm, r, _) in enumerate(episodes)]
    ends = [EpisodeEvent(str(i), what, arm) for i, (arm, _, what) in enumerate(episodes)]
    rng.shuffle(ends)
    half = len(ends) // 2
    first.take([*begins, *ends[:half]])
    again.restore(first.stored())
    for trial in (first, again):
        trial.take(ends[half:])
    assert again.stored() == first.stored()
    assert again.evidence == first.evidence


def test_a_snapshot_of_an_older_version_has_no_runs():
    trial, again = StepTrial(0.1, 5), StepTrial(0.1, 5)
    trial.take([EpisodeEvent('a', BEGUN, 'candidate', 'r')])
    again.restore(structs.replace(trial.stored(), runs=UNSET))
    again.take([EpisodeEvent('a', 'failure', 'candidate')])
    assert again.totals['candidate'].failure == 1
    assert again.runs['candidate'].unknown == 1


@pytest.mark.parametrize('share', [0.5, 0.1])
def test_the_simulation_of_whole_rollouts_has_the_same_evidence(share):
    rng = np.random.default_rng(1)
    arms, goods = rng.random(300) < share, rng.random(300) < 0.8
    promotion = evidence(arms, goods, 5, 0.1, sign=1) / factors(arms, goods, 5)
    rollback = evidence(arms, goods, 1, 0.0, sign=-1) / factors(arms, goods, 1)
    trial = StepTrial(0.1, 5)
    for number, (is_candidate, is_good) in enumerate(zip(arms, goods, strict=True)):
        name, arm = str(number), 'candidate' if is_candidate else 'champion'
        end = EpisodeEvent(name, 'success' if is_good else 'failure', arm)
        trial.take([EpisodeEvent(name, BEGUN, arm, f'robot {number % 10}'), end])
        assert trial.evidence[:2] == pytest.approx((promotion[number], rollback[number]))


def test_runs_of_one_robot_promote_as_rarely_as_stated(monkeypatch):
    """The slow tests have more fleets; without the factor of runs a third is promoted."""
    fleet = SimulatedFleet(ArmBehavior(0.9), ArmBehavior(0.8, robot_run=20), episodes=600)

    def promoted() -> int:
        ends = [fleet.run(np.random.default_rng(seed), RouterParameters()) for seed in range(40)]
        return sum(end.state is CanaryPhase.PROMOTED for end in ends)

    assert promoted() <= 2
    monkeypatch.setattr(trial_module, 'common_factor', lambda **_: 1.0)
    assert promoted() >= 5
