"""Each guard: where it trips, that it needs enough, and what it says."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.canary.facts import Facts, SlotFacts
from lerobot_serve.router.canary.guards import (
    Limits,
    not_ready,
    too_long,
    tripped,
    unreported,
    unseen,
)

SLOT = SlotFacts(
    episodes=50,
    successes=40,
    failures=10,
    answers=1000,
    commands=20_000,
    latency_ms_p95=50.0,
    healthy=True,
    policy='p@1',
)
LIMITS = Limits(divergence=3.0)


def facts(candidate: dict | None = None, champion: dict | None = None, **others) -> Facts:
    both = replace(SLOT, **candidate or {}), replace(SLOT, **champion or {})
    return Facts(*both, **{'divergence': 1.0, 'divergence_samples': 100, **others})


def test_nothing_trips_and_nothing_is_unseen():
    assert tripped(facts(), LIMITS) == unseen(facts(), LIMITS) == ''
    assert unreported(facts(), 80) == ''


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others', 'told'),
    [
        (
            {'failed_answers': 21},
            {},
            {},
            '21 of 1000 answers of the candidate failed: 2.1 %, limit 2 %',
        ),
        (
            {'failed_answers': 5, 'answers': 5},
            {},
            {},
            '5 of 5 answers of the candidate failed: 100 %',
        ),
        (
            {'latency_ms_p95': 101.0},
            {},
            {},
            'within 101 ms, those of the champion within 50 ms; limit 100 ms, 2 times as long',
        ),
        ({'latency_ms_p95': 10.1}, {'latency_ms_p95': 0.0}, {}, 'limit 10 ms'),
        (
            {'trips': 201},
            {},
            {},
            '201 of 20000 commands of the candidate were changed by the safety cage: 1.0 %, '
            'limit 1.0 % (champion 0.0 %)',
        ),
        ({'trips': 901}, {'trips': 450}, {}, 'limit 4.5 % (champion 2.2 %)'),
        ({'trips': 300}, {'commands': 0}, {}, 'limit 1.0 % (champion 0.0 %)'),
        (
            {'fallbacks': 1001, 'oldest_age_s': 1.25},
            {},
            {},
            'the fallback ladder, not from a chunk: 5.0 %, limit 5.0 % (champion 0.0 %); oldest '
            'action 1.2 s',
        ),
        ({}, {}, {'divergence': 3.1}, '3.1 of its spreads apart over 100 observations, limit 3'),
        ({}, {}, {'divergence': math.inf}, 'inf of its spreads'),
    ],
)
def test_a_guard_trips_and_says_why(candidate, champion, others, told):
    assert told in tripped(facts(candidate, champion, **others), LIMITS)


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others'),
    [
        ({'failed_answers': 20}, {}, {}),
        # four of four are few
        ({'failed_answers': 4, 'answers': 4}, {}, {}),
        ({'latency_ms_p95': 100.0}, {}, {}),
        ({'latency_ms_p95': 9000.0, 'answers': 99}, {}, {}),
        ({'latency_ms_p95': 9000.0}, {'answers': 0}, {}),
        ({'latency_ms_p95': 9000.0}, {'latency_ms_p95': math.nan}, {}),
        ({'latency_ms_p95': math.nan}, {}, {}),
        # both far below what matters
        ({'latency_ms_p95': 4.0}, {'latency_ms_p95': 0.01}, {}),
        ({'trips': 200}, {}, {}),
        ({'trips': 900}, {'trips': 450}, {}),
        ({'trips': 2999, 'commands': 2999}, {}, {}),
        ({'trips': 99, 'commands': 3000}, {}, {}),
        ({'fallbacks': 1000}, {}, {}),
        ({'fallbacks': 2999, 'commands': 2999}, {}, {}),
        ({}, {}, {'divergence': 3.0}),
        ({}, {}, {'divergence': 9.0, 'divergence_samples': 19}),
        ({}, {}, {'divergence': math.nan}),
    ],
)
def test_no_guard_trips_at_its_limit_or_on_few(candidate, champion, others):
    assert tripped(facts(candidate, champion, **others), LIMITS) == ''


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others', 'told'),
    [
        ({'answers': 99}, {}, {}, 'only 99 answers of the candidate in this step, 100 are needed'),
        ({'latency_ms_p95': math.nan}, {}, {}, 'too few answers of the candidate to tell'),
        ({}, {'latency_ms_p95': math.nan}, {}, 'too few answers of the champion to tell'),
        ({'commands': 2999}, {}, {}, 'the router does not hear ~/executed_action of the robots'),
        ({}, {}, {'divergence_samples': 0}, 'measured on 0 observations only, 20 are needed'),
        ({}, {}, {'divergence': math.nan}, 'is a shadow running? A limit of 0 does without'),
        ({'successes': 2, 'failures': 2}, {}, {}, 'only 4 episodes of the candidate ended'),
        ({}, {'successes': 0, 'failures': 0}, {}, 'only 0 episodes of the champion ended'),
    ],
)
def test_what_was_not_seen_holds(candidate, champion, others, told):
    seen = facts(candidate, champion, **others)
    assert told in unseen(seen, LIMITS)
    assert tripped(seen, LIMITS) == ''


def test_how_much_has_to_be_seen_is_a_matter_of_the_fleet():
    few = {'answers': 20, 'commands': 150, 'latency_ms_p95': 150.0, 'trips': 120}
    seen = facts(few, {'answers': 20})
    small = Limits(minimum_answers=20, minimum_commands=150)
    assert 'only 20 answers' in unseen(seen, Limits())
    assert tripped(seen, Limits()) == ''
    assert unseen(seen, small) == ''
    assert 'the candidate is slow' in tripped(seen, small)
    assert 'were changed by the safety cage' in tripped(seen, replace(small, latency_ratio=0.0))
    more = replace(small, minimum_commands=151, latency_ratio=0.0)
    assert tripped(seen, more) == ''
    assert '151 are needed' in unseen(seen, more)


def test_a_limit_of_zero_switches_a_guard_off_and_what_it_needs():
    off = Limits(0, 0, 0, 0, 0, 0)
    bad = {'failed_answers': 900, 'latency_ms_p95': 1e6, 'trips': 20_000, 'fallbacks': 20_000}
    assert tripped(facts(bad, divergence=100.0), off) == ''
    blind = {'answers': 0, 'commands': 0, 'latency_ms_p95': math.nan}
    assert unseen(facts(blind, blind, divergence=math.nan, divergence_samples=0), off) == ''
    assert unreported(facts({'unreported': 10**6}), 0) == ''


@pytest.mark.parametrize('slot', ['candidate', 'champion'])
@pytest.mark.parametrize('how', ['unreported', 'aborted', 'moved'])
def test_too_few_verdicts_are_told_with_what_to_do(slot, how):
    few = {'episodes': 63, how: 13}
    told = unreported(facts(**{slot: few}), 80)
    assert f'only 79 % of the 63 ended episodes of the {slot} have a verdict' in told
    assert 'those without one may be the failures' in told
    assert 'publish an EpisodeOutcome' in told
    assert f'13 {how}' in told
    assert unreported(facts(**{slot: {'episodes': 62, how: 12}}), 80) == ''


def test_episodes_that_nobody_broke_down_have_no_verdict():
    assert 'only 50 % of the 100' in unreported(facts({'episodes': 100}), 80)


def test_a_slot_is_ready_when_it_is_healthy_and_known():
    assert not_ready('candidate', SLOT) == ''
    ill = replace(SLOT, healthy=False, health_text='2 of 2 replicas time out')
    told = not_ready('candidate', ill)
    assert told == 'the slot of the candidate is not healthy: 2 of 2 replicas time out'
    assert 'policy of the champion is not known' in not_ready('champion', replace(SLOT, policy=''))


def test_an_episode_longer_than_what_was_left_out_holds():
    assert too_long(facts(longest_episode_s=60.0), 60.0) == ''
    assert 'an episode took 61 s, but outcomes count from 60 s' in too_long(
        facts(longest_episode_s=61.0), 60.0
    )


@pytest.mark.parametrize(
    ('values', 'told'),
    [
        ({'latency_ratio': -1.0}, 'latency_ratio must be finite and at least 0, got -1.0'),
        ({'divergence': math.nan}, 'divergence must be finite and at least 0, got nan'),
        ({'trips_percent': 101.0}, 'trips_percent must be in [0, 100], got 101.0'),
    ],
)
def test_limits_have_bounds(values, told):
    with pytest.raises(ParameterError) as error:
        Limits(**values)
    assert told in str(error.value)


NUMBER = st.integers(0, 10**6)
ANY_SLOT = st.builds(
    SlotFacts,
    **dict.fromkeys(('episodes', 'successes', 'failures', 'aborted', 'unreported'), NUMBER),
    **dict.fromkeys(('answers', 'failed_answers', 'commands', 'fallbacks', 'trips'), NUMBER),
    latency_ms_p95=st.floats(0, 1e12) | st.just(math.nan),
)


@given(ANY_SLOT, ANY_SLOT, st.floats(), NUMBER)
def test_any_facts_can_be_judged(candidate, champion, divergence, samples):
    seen = Facts(candidate, champion, divergence, samples)
    for text in (tripped(seen, LIMITS), unseen(seen, LIMITS), unreported(seen, 80)):
        assert len(text) < 500


@given(ANY_SLOT, ANY_SLOT)
def test_a_candidate_that_does_better_trips_nothing(candidate, champion):
    best = replace(candidate, failed_answers=0, trips=0, fallbacks=0, latency_ms_p95=0.0)
    assert tripped(Facts(best, champion), LIMITS) == ''
