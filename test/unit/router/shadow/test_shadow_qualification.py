# SPDX-License-Identifier: Apache-2.0
"""What was learned of a policy in shadow, and what it still lacks."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest
from support.router.shadow_rig import learn, SHADOW

from lerobot_serve.router.shadow.qualification import (
    POLICIES_LIMIT,
    Qualification,
    RECENT_EPISODES,
)

HOUR = 3600


# what is learned


def test_nothing_is_known_of_a_policy_that_was_never_in_shadow():
    record = Qualification().of(SHADOW)
    assert (record.hours, record.episodes, record.samples, record.trips) == (0, 0, 0, 0)
    assert isnan(record.divergence_mean) and isnan(record.spreads_mean)


def test_time_counts_between_samples_and_at_most_ten_seconds_of_each_gap():
    known = Qualification()
    for at_s in (100.0, 100.5, 103.0, 103.0, 120.0, 120.25):
        learn(known, at_s)
    assert known.of(SHADOW).observed_s == 0.5 + 2.5 + 10 + 0.25


def test_each_policy_has_its_own_time():
    known = Qualification()
    for at_s in range(10):
        learn(known, at_s, policy='one@1')
        learn(known, at_s, policy='another@1')
    assert [known.of(policy).observed_s for policy in ('one@1', 'another@1')] == [9, 9]


def test_means_are_of_samples_that_are_numbers():
    known = Qualification()
    learn(known, divergence=1.0, in_spreads=3.0, latency_ms=10.0)
    learn(known, divergence=nan, in_spreads=nan, latency_ms=30.0, trips=True)
    learn(known, divergence=2.0, in_spreads=inf, latency_ms=20.0)
    record = known.of(SHADOW)
    assert (record.samples, record.trips) == (3, 1)
    assert (record.divergence_mean, record.divergence_count) == (1.5, 2)
    assert (record.spreads_mean, record.spreads_count) == (3.0, 1)
    assert record.latency_sum_ms == 60.0


def test_an_episode_counts_once_and_one_without_a_name_never():
    known = Qualification()
    for episode_id in ('a', 'b', 'a', '', 'c', 'b', ''):
        learn(known, episode_id=episode_id)
    assert known.of(SHADOW).episodes == 3


def test_episodes_are_not_all_remembered():
    known = Qualification()
    for number in range(3 * RECENT_EPISODES):
        learn(known, episode_id=f'e-{number}')
        learn(known, episode_id='one that continues')
    record = known.of(SHADOW)
    assert record.episodes == 3 * RECENT_EPISODES + 1
    assert len(record.recent) == RECENT_EPISODES


def test_of_too_many_policies_the_one_unheard_for_longest_is_forgotten():
    known = Qualification()
    for number in range(POLICIES_LIMIT):
        learn(known, policy=f'policy@{number}')
    learn(known, policy='policy@0')
    learn(known, policy='one@more')
    kept = [n for n in range(POLICIES_LIMIT) if known.of(f'policy@{n}').samples]
    assert kept == [0, *range(2, POLICIES_LIMIT)]


# what it lacks

LACKING = [
    (0.0, 0, ''),
    (1.0, 0, f'unmet shadow requirements of {SHADOW}: 0.50 of 1 hours'),
    (0.5, 3, f'unmet shadow requirements of {SHADOW}: 2 of 3 episodes'),
    (1.5, 100, f'unmet shadow requirements of {SHADOW}: 0.50 of 1.5 hours, 2 of 100 episodes'),
    (0.5, 2, ''),
    # rounded up it would seem to be enough
    (0.5001, 2, f'unmet shadow requirements of {SHADOW}: 0.50 of 0.5001 hours'),
]


@pytest.mark.parametrize(('hours', 'episodes', 'text'), LACKING)
def test_what_is_lacking_is_said_with_numbers(hours, episodes, text):
    known = Qualification()
    for number in range(HOUR // 20 + 1):
        learn(known, 10 * number, f'e-{number % 2}')
    assert known.unmet_requirements(SHADOW, hours, episodes) == text


def test_time_that_is_nearly_enough_does_not_look_like_enough():
    known = Qualification()
    for number in range(HOUR // 10):
        learn(known, 10 * number)
    assert '0.99 of 1 hours' in known.unmet_requirements(SHADOW, 1.0, 0)


def test_a_policy_that_was_never_in_shadow_lacks_all():
    known = Qualification()
    assert known.unmet_requirements('new@1', 2.0, 9) == (
        'unmet shadow requirements of new@1: 0.00 of 2 hours, 0 of 9 episodes'
    )
    assert known.unmet_requirements('', 0.0, 1).startswith(
        'unmet shadow requirements of the policy: 0 of 1'
    )
