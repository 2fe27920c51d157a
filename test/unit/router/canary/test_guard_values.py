# SPDX-License-Identifier: Apache-2.0
"""What operators see of the guards is what the guards decide by."""

from __future__ import annotations

import math

import pytest
from support.router.canary_rig import started

from lerobot_serve.contract.records import GuardState
from lerobot_serve.router.canary.facts import counters, Facts, SlotFacts
from lerobot_serve.router.canary.guards.rules import new_alarms, rollback_reason, update_alarms
from lerobot_serve.router.canary.guards.values import guard_values
from lerobot_serve.router.canary.plan import GuardLimits

LIMITS = GuardLimits(divergence=3.0)
NAMES = ['failed_replies', 'latency', 'cage', 'fallback', 'halted', 'divergence']


def values_of(seen: Facts, limits: GuardLimits = LIMITS) -> tuple[dict[str, GuardState], str]:
    """Return the values by name and why the guards roll back, if all grew in one update."""
    alarms = new_alarms()
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
    off = GuardLimits(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert [value.limit for value in values_of(seen, off)[0].values()] == [0.0] * 6


def test_evidence_is_a_share_of_what_rolls_back():
    world = started()
    world.grow('candidate', replies=100, failed_replies=4)
    world.grow('champion', replies=1000)
    world.poll()
    record = world.canary.record
    failed = guard_values(world.seen, record.alarms, world.canary.limits)[0]
    assert 0 < failed.alarm < 1
    assert failed.samples == 100
