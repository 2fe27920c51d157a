# SPDX-License-Identifier: Apache-2.0
"""Each guard: where it trips, that it needs enough, and what it says."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.canary.facts import ArmCounts, counters, Facts, SlotFacts
from lerobot_serve.router.canary.guards.rules import (
    missing_data,
    new_alarms,
    not_ready_reason,
    rollback_reason,
    update_alarms,
)
from lerobot_serve.router.canary.plan import GuardLimits

SLOT = SlotFacts(
    arm=ArmCounts(begun=50, success=40, failure=10),
    replies=1000,
    commands=20_000,
    latency_ms_p95=50.0,
    healthy=True,
    policy='p@1',
)
LIMITS = GuardLimits(divergence=3.0)


def facts(candidate: dict | None = None, champion: dict | None = None, **others) -> Facts:
    both = replace(SLOT, **candidate or {}), replace(SLOT, **champion or {})
    return Facts(*both, **{'divergence': 1.0, 'divergence_samples': 100, **others})


def judged(seen: Facts, limits: GuardLimits = LIMITS) -> str:
    """Return what the guards say when all of it grew in one look."""
    alarms = new_alarms()
    update_alarms(
        alarms, {s: counters(getattr(seen, s)) for s in ('candidate', 'champion')}, limits
    )
    return rollback_reason(seen, alarms, limits)


def test_nothing_trips_and_nothing_is_unseen():
    assert judged(facts()) == missing_data(facts(), LIMITS) == ''


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others', 'told'),
    [
        (
            {'failed_replies': 70},
            {},
            {},
            '70 of the last 1000 requests of the candidate failed: 7.0 %, limit 2.0 % (champion '
            '0.0 %)',
        ),
        (
            {'failed_replies': 8, 'replies': 8},
            {},
            {},
            '8 of the last 8 requests of the candidate failed: 100 %',
        ),
        ({'failed_replies': 300}, {'failed_replies': 40}, {}, 'limit 8.0 % (champion 4.0 %)'),
        (
            {'latency_ms_p95': 101.0},
            {},
            {},
            'candidate latency p95 101 ms, champion 50 ms; limit 100 ms (2x)',
        ),
        ({'latency_ms_p95': 10.1}, {'latency_ms_p95': 0.0}, {}, 'limit 10 ms'),
        (
            {'trips': 500},
            {},
            {},
            '500 of the last 20000 commands of the candidate were changed by the safety cage: '
            '2.5 %, limit 1.0 % (champion 0.0 %)',
        ),
        ({'trips': 3000}, {'trips': 450}, {}, 'limit 4.5 % (champion 2.2 %)'),
        ({'trips': 3000}, {'commands': 0}, {}, 'limit 1.0 % (champion 0.0 %)'),
        (
            {'fallbacks': 3000, 'oldest_age_s': 1.25},
            {},
            {},
            'the fallback ladder, not from a chunk: 15 %, limit 5.0 % (champion 0.0 %); oldest '
            'action 1.2 s',
        ),
        ({}, {}, {'divergence': 3.1}, 'divergence 3.1 spreads (limit 3) over 100'),
        ({}, {}, {'divergence': math.inf}, 'divergence inf spreads'),
    ],
)
def test_a_guard_trips_and_says_why(candidate, champion, others, told):
    assert told in judged(facts(candidate, champion, **others))


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others'),
    [
        # at the limit
        ({'failed_replies': 20}, {}, {}),
        # one robot that is switched off
        ({'failed_replies': 5, 'replies': 5}, {}, {}),
        # both fail alike, or the candidate less
        ({'failed_replies': 30}, {'failed_replies': 40}, {}),
        ({'failed_replies': 70}, {'failed_replies': 70}, {}),
        ({'latency_ms_p95': 100.0}, {}, {}),
        ({'latency_ms_p95': 9000.0, 'replies': 99}, {}, {}),
        ({'latency_ms_p95': 9000.0}, {'replies': 0}, {}),
        ({'latency_ms_p95': 9000.0}, {'latency_ms_p95': math.nan}, {}),
        ({'latency_ms_p95': math.nan}, {}, {}),
        # both far below what matters
        ({'latency_ms_p95': 4.0}, {'latency_ms_p95': 0.01}, {}),
        ({'trips': 200}, {}, {}),
        ({'trips': 900}, {'trips': 450}, {}),
        ({'trips': 599, 'commands': 599}, {}, {}),
        ({'fallbacks': 1000}, {}, {}),
        ({'fallbacks': 599, 'commands': 599}, {}, {}),
        ({}, {}, {'divergence': 3.0}),
        ({}, {}, {'divergence': 9.0, 'divergence_samples': 19}),
        ({}, {}, {'divergence': math.nan}),
    ],
)
def test_no_guard_trips_at_its_limit_or_on_few(candidate, champion, others):
    assert judged(facts(candidate, champion, **others)) == ''


@pytest.mark.parametrize(
    ('candidate', 'champion', 'others', 'told'),
    [
        ({'replies': 99}, {}, {}, 'too few replies of the candidate in this step: 99 of 100'),
        ({'latency_ms_p95': math.nan}, {}, {}, 'too few replies of the candidate to measure'),
        ({}, {'latency_ms_p95': math.nan}, {}, 'too few replies of the champion to measure'),
        ({'commands': 2999}, {}, {}, '2999 of 3000. Robots report executed actions'),
        ({}, {}, {'divergence_samples': 0}, 'observations with a divergence: 0 of 20'),
        ({}, {}, {'divergence': math.nan}, 'check that a shadow runs'),
        (
            {'arm': ArmCounts(9, 2, 2)},
            {},
            {},
            '4 of 9 episodes of the candidate in this step',
        ),
        (
            {},
            {'arm': ArmCounts()},
            {},
            '0 of 0 episodes of the champion in this step have an outcome',
        ),
    ],
)
def test_what_was_not_seen_holds(candidate, champion, others, told):
    seen = facts(candidate, champion, **others)
    assert told in missing_data(seen, LIMITS)
    assert judged(seen) == ''


def test_how_much_has_to_be_seen_is_a_matter_of_the_fleet():
    few = {'replies': 20, 'commands': 150, 'latency_ms_p95': 150.0, 'trips': 120}
    seen = facts(few, {'replies': 20})
    small = GuardLimits(minimum_replies=20, minimum_commands=150)
    assert 'in this step: 20 of 100' in missing_data(seen, GuardLimits())
    assert judged(seen, GuardLimits()) == ''
    assert missing_data(seen, small) == ''
    assert 'candidate latency p95' in judged(seen, small)
    assert 'were changed by the safety cage' in judged(seen, replace(small, latency_ratio=0.0))
    more = replace(small, minimum_commands=800, latency_ratio=0.0)
    assert judged(seen, more) == ''
    assert 'of 800' in missing_data(seen, more)


def test_a_limit_of_zero_switches_a_guard_off_and_what_it_needs():
    off = GuardLimits(0, 0, 0, 0, 0)
    bad = {'failed_replies': 900, 'latency_ms_p95': 1e6, 'trips': 20_000, 'fallbacks': 20_000}
    assert judged(facts(bad, divergence=100.0), off) == ''
    blind = {'replies': 0, 'commands': 0, 'latency_ms_p95': math.nan}
    assert missing_data(facts(blind, blind, divergence=math.nan, divergence_samples=0), off) == ''


def test_a_slot_is_ready_when_it_is_healthy_and_known():
    assert not_ready_reason('candidate', SLOT) == ''
    ill = replace(SLOT, healthy=False, health_text='2 of 2 replicas time out')
    told = not_ready_reason('candidate', ill)
    assert told == 'the slot of the candidate is not healthy: 2 of 2 replicas time out'
    assert 'policy of the champion is not known' in not_ready_reason(
        'champion', replace(SLOT, policy='')
    )


NUMBER = st.integers(0, 10**6)
ANY_SLOT = st.builds(
    SlotFacts,
    arm=st.builds(ArmCounts, NUMBER, NUMBER, NUMBER),
    **dict.fromkeys(('replies', 'failed_replies', 'commands', 'fallbacks', 'trips'), NUMBER),
    latency_ms_p95=st.floats(0, 1e12) | st.just(math.nan),
)


@given(ANY_SLOT, ANY_SLOT, st.floats(), NUMBER)
def test_any_facts_can_be_judged(candidate, champion, divergence, samples):
    seen = Facts(candidate, champion, divergence, samples)
    for text in (judged(seen), missing_data(seen, LIMITS)):
        assert len(text) < 500


@given(ANY_SLOT, ANY_SLOT)
def test_a_candidate_that_does_better_trips_nothing(candidate, champion):
    best = replace(candidate, failed_replies=0, trips=0, fallbacks=0, latency_ms_p95=0.0)
    assert judged(Facts(best, champion)) == ''
