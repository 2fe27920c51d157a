# SPDX-License-Identifier: Apache-2.0
"""Each guard: where it trips, that it needs enough, what it says, and what operators see of it."""

from __future__ import annotations

from dataclasses import replace
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.router.canary_rig import started

from lerobot_serve.contract.records import GuardState
from lerobot_serve.router.canary.facts import (
    ArmCounts,
    counters,
    Facts,
    not_ready_reason,
    SlotFacts,
)
from lerobot_serve.router.canary.guards.alarms import ShareAlarms
from lerobot_serve.router.canary.guards.rules import (
    missing_data,
    rollback_reason,
    update_alarms,
)
from lerobot_serve.router.canary.guards.values import guard_values
from lerobot_serve.router.parameters import RouterParameters

SLOT = SlotFacts(
    arm=ArmCounts(begun=50, success=40, failure=10),
    replies=1000,
    commands=20_000,
    latency_ms_p95=50.0,
    healthy=True,
    policy='p@1',
)
LIMITS = RouterParameters(canary_max_divergence=3.0)


def facts(candidate: dict | None = None, champion: dict | None = None, **others) -> Facts:
    both = replace(SLOT, **candidate or {}), replace(SLOT, **champion or {})
    return Facts(*both, **{'divergence': 1.0, 'divergence_samples': 100, **others})


def judged(seen: Facts, limits: RouterParameters = LIMITS) -> str:
    """Return what the guards say when all of it grew in one look."""
    alarms = ShareAlarms()
    update_alarms(
        alarms, {s: counters(getattr(seen, s)) for s in ('candidate', 'champion')}, limits
    )
    return rollback_reason(seen, alarms, limits)


def test_nothing_trips_and_nothing_is_unseen():
    assert judged(facts()) == missing_data(facts(), LIMITS) == ''


TRIPS = [
    ({'failed_replies': 70}, {}, {}),
    ({'failed_replies': 8, 'replies': 8}, {}, {}),
    ({'failed_replies': 300}, {'failed_replies': 40}, {}),
    ({'latency_ms_p95': 101.0}, {}, {}),
    ({'latency_ms_p95': 10.1}, {'latency_ms_p95': 0.0}, {}),
    ({'trips': 500}, {}, {}),
    ({'trips': 3000}, {'trips': 450}, {}),
    ({'trips': 3000}, {'commands': 0}, {}),
    ({'fallbacks': 3000, 'oldest_age_s': 1.25}, {}, {}),
    ({}, {}, {'divergence': 3.1}),
    ({}, {}, {'divergence': math.inf}),
]


@pytest.mark.golden
def test_a_guard_trips_and_says_why(golden):
    said = [judged(facts(candidate, champion, **others)) for candidate, champion, others in TRIPS]
    assert all(said)
    golden.holds('canary/guards.txt', '\n'.join(said) + '\n')


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


UNSEEN = [
    ({'replies': 99}, {}, {}),
    ({'latency_ms_p95': math.nan}, {}, {}),
    ({}, {'latency_ms_p95': math.nan}, {}),
    ({'commands': 2999}, {}, {}),
    ({}, {}, {'divergence_samples': 0}),
    ({}, {}, {'divergence': math.nan}),
    ({'arm': ArmCounts(9, 2, 2)}, {}, {}),
    ({}, {'arm': ArmCounts()}, {}),
]


@pytest.mark.golden
def test_what_was_not_seen_holds(golden):
    seen = [facts(candidate, champion, **others) for candidate, champion, others in UNSEEN]
    assert not any(map(judged, seen))
    said = [missing_data(each, LIMITS) for each in seen]
    assert all(said)
    golden.holds('canary/unseen.txt', '\n'.join(said) + '\n')


def test_how_much_has_to_be_seen_is_a_matter_of_the_fleet():
    few = {'replies': 20, 'commands': 150, 'latency_ms_p95': 150.0, 'trips': 120}
    seen = facts(few, {'replies': 20})
    small = RouterParameters(canary_minimum_replies=20, canary_minimum_commands=150)
    assert 'in this step: 20 of 100' in missing_data(seen, RouterParameters())
    assert judged(seen, RouterParameters()) == ''
    assert missing_data(seen, small) == ''
    assert 'candidate latency p95' in judged(seen, small)
    deaf = replace(small, canary_max_latency_ratio=0.0)
    assert 'were changed by the safety cage' in judged(seen, deaf)
    more = replace(small, canary_minimum_commands=800, canary_max_latency_ratio=0.0)
    assert judged(seen, more) == ''
    assert 'of 800' in missing_data(seen, more)


def test_a_limit_of_zero_switches_a_guard_off_and_what_it_needs():
    off = RouterParameters(
        canary_max_failed_percent=0,
        canary_max_latency_ratio=0,
        canary_max_trip_percent=0,
        canary_max_fallback_percent=0,
        canary_max_divergence=0,
    )
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


NAMES = ['failed_replies', 'latency', 'cage', 'fallback', 'halted', 'divergence']


def values_of(seen: Facts, limits: RouterParameters = LIMITS) -> tuple[dict[str, GuardState], str]:
    """Return the values by name and why the guards roll back, if all grew in one update."""
    alarms = ShareAlarms()
    grown = {arm: counters(getattr(seen, arm)) for arm in ('candidate', 'champion')}
    update_alarms(alarms, grown, limits)
    found = {value.name: value for value in guard_values(seen, alarms, limits)}
    return found, rollback_reason(seen, alarms, limits)


def test_without_data_there_are_limits_and_no_values():
    found, _ = values_of(Facts(SlotFacts(), SlotFacts()))
    assert list(found) == NAMES
    assert all(math.isnan(value.value) for value in found.values())
    assert [value.limit for value in found.values()] == [2.0, 10.0, 1.0, 5.0, 5.0, 3.0]
    assert [value.minimum_samples for value in found.values()] == [100, 100, 3000, 3000, 2, 20]
    assert not any(value.alarm for value in found.values())


@pytest.mark.parametrize(
    ('name', 'candidate', 'others', 'value', 'samples'),
    [
        ('failed_replies', {'replies': 200, 'failed_replies': 100}, {}, 50.0, 200),
        ('cage', {'commands': 20_000, 'trips': 5000}, {}, 25.0, 20_000),
        ('fallback', {'commands': 20_000, 'fallbacks': 10_000}, {}, 50.0, 20_000),
        ('latency', {'replies': 200, 'latency_ms_p95': 11.0}, {}, 11.0, 200),
        ('halted', {'halts': 4}, {}, 100.0, 4),
        ('divergence', {}, {'divergence': 4.0, 'divergence_samples': 30}, 4.0, 30),
    ],
)
def test_a_guard_that_rolls_back_shows_it(name, candidate, others, value, samples):
    champion = SlotFacts(replies=1000, latency_ms_p95=5.0)
    found, reason = values_of(Facts(SlotFacts(**candidate), champion, **others))
    assert reason
    shown = found[name]
    assert (shown.value, shown.samples, shown.alarm) == (value, samples, 1.0)
    assert shown.value > shown.limit
    assert [each.name for each in found.values() if each.alarm == 1.0] == [name]


def test_the_limit_rises_with_the_champion_and_is_zero_when_the_guard_is_off():
    seen = Facts(SlotFacts(commands=9000), SlotFacts(commands=9000, trips=900))
    assert values_of(seen)[0]['cage'].limit == pytest.approx(20.0)
    off = RouterParameters(
        canary_max_failed_percent=0.0,
        canary_max_latency_ratio=0.0,
        canary_max_trip_percent=0.0,
        canary_max_fallback_percent=0.0,
        canary_max_divergence=0.0,
        canary_max_halted_percent=0.0,
    )
    assert [value.limit for value in values_of(seen, off)[0].values()] == [0.0] * 6


def test_evidence_is_a_share_of_what_rolls_back():
    world = started()
    world.grow('candidate', replies=100, failed_replies=4)
    world.grow('champion', replies=1000)
    world.poll()
    record = world.canary.record
    failed = guard_values(world.seen, record.alarms, world.canary.rules)[0]
    assert 0 < failed.alarm < 1
    assert failed.samples == 100
