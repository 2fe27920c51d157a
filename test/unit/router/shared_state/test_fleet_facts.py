# SPDX-License-Identifier: Apache-2.0
"""The facts of several routers are those of one."""

from __future__ import annotations

from dataclasses import replace
import json
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.router.canary.facts import COUNTERS, Facts, SlotFacts
from lerobot_serve.router.shared_state.fleet_facts import (
    counters_from_json,
    fleet_facts,
    FleetCounters,
    report_of,
    reported,
)
from lerobot_serve.router.storage.rows import Member

READY = SlotFacts(healthy=True, policy='act@1')
OWN = Facts(replace(READY, policy='act@2'), READY)


def member(name: str = '/other') -> Member:
    return Member(f'run of {name}', name, {})


def merged(own: Facts, *others: Facts, counters: FleetCounters | None = None) -> Facts:
    views = [
        (member(f'/other_{number}'), reported(json.loads(json.dumps(report_of(facts)))))
        for number, facts in enumerate(others)
    ]
    return fleet_facts(own, views, counters or FleetCounters(), 'own', ())


def counted(facts: Facts, **counters: int) -> Facts:
    return replace(facts, candidate=replace(facts.candidate, **counters))


COUNTS = st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=20)


@given(COUNTS)
def test_counters_are_the_sum_of_what_each_router_has_added(rounds):
    counters, totals = FleetCounters(), [0, 0, 0]
    merged(OWN, OWN, OWN, counters=counters)
    for added in rounds:
        totals = [before + more for before, more in zip(totals, added, strict=True)]
        own, *others = (counted(OWN, replies=total) for total in totals)
        found = merged(own, *others, counters=counters)
        assert found.candidate.replies == sum(totals)


def test_a_router_that_starts_again_or_leaves_takes_nothing_away():
    counters = FleetCounters()
    merged(OWN, OWN, counters=counters)
    merged(OWN, counted(OWN, replies=10), counters=counters)
    assert merged(OWN, counted(OWN, replies=3), counters=counters).candidate.replies == 13
    assert merged(OWN, counters=counters).candidate.replies == 13


def test_what_a_router_counted_before_it_is_seen_is_of_no_known_step():
    counters = FleetCounters()
    merged(OWN, counters=counters)
    assert merged(OWN, counted(OWN, replies=50_000), counters=counters).candidate.replies == 0
    assert merged(OWN, counted(OWN, replies=50_007), counters=counters).candidate.replies == 7


def test_a_router_that_leads_next_goes_on_from_the_stored_counters():
    first = FleetCounters()
    merged(OWN, counted(OWN, replies=10), counters=first)
    stored = json.loads(json.dumps(first.as_json(['own', 'run of /other_0', 'gone'])))
    again = counters_from_json(stored)
    assert merged(OWN, counted(OWN, replies=14), counters=again).candidate.replies == 4
    for damaged in (None, [], {'own': 5}, {'own': {'candidate': {'replies': -1}}}):
        assert counters_from_json(damaged).known == {}


def test_the_worst_latency_and_age_count():
    slow = replace(OWN, candidate=replace(OWN.candidate, latency_ms_p95=90.0, oldest_age_s=2.0))
    found = merged(OWN, slow)
    assert (found.candidate.latency_ms_p95, found.candidate.oldest_age_s) == (90.0, 2.0)
    assert math.isnan(merged(OWN, OWN).candidate.latency_ms_p95)


def test_a_slot_that_one_router_cannot_use_holds_the_rollout():
    bad = replace(OWN, candidate=replace(OWN.candidate, healthy=False, health_text='unreachable'))
    for own, other, place in ((OWN, bad, 'at /other_0'), (bad, OWN, 'here')):
        found = merged(own, other)
        assert found.candidate.healthy
        assert found.missing == f'the slot of the candidate is not healthy {place}: unreachable'
    assert not merged(bad, bad).candidate.healthy


def test_another_policy_at_another_router_holds_the_rollout():
    other = replace(OWN, candidate=replace(OWN.candidate, policy='act@3'))
    assert merged(OWN, other).missing == ('the candidate is act@2 here, and act@3 at /other_0')
    unknown = replace(OWN, candidate=replace(OWN.candidate, policy=''))
    assert merged(OWN, unknown).missing == ''


@pytest.mark.parametrize('name', [*COUNTERS, 'latency_ms_p95', 'healthy', 'policy'])
@pytest.mark.parametrize('value', [[], 'x' * 3, -1, math.inf])
def test_a_report_that_cannot_be_read_is_refused(name, value):
    report = report_of(OWN)
    report['candidate'][name] = value
    if name == 'policy' and value == 'xxx':
        return
    with pytest.raises((ValueError, TypeError, KeyError)):
        reported(report)
