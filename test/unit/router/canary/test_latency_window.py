# SPDX-License-Identifier: Apache-2.0
"""The latency guard judges a policy in its step by its own replies, not by earlier ones."""

from __future__ import annotations

import math

import pytest
from support.router.router_core_rig import RoutingRig, SECOND, TWO_SLOTS

from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.storage.records import CANARY
from lerobot_serve_interfaces.srv import ControlSlot

PROMOTE, ROLL_BACK, RESUME = (
    getattr(ControlSlot.Request, f'CANARY_{name}') for name in ('PROMOTE', 'ROLLBACK', 'RESUME')
)
SLOW_MS, FAST_MS = 900.0, 20.0


@pytest.fixture
def rig(make_router):
    built = make_router(**TWO_SLOTS, canary_plan=('25', '50', '100'))
    poll(built, 2)
    assert built.core.canary.canary.state is CanaryPhase.RUNNING
    return built


def poll(rig: RoutingRig, times: int = 1) -> None:
    for _ in range(times):
        rig.now_ns += SECOND // 10
        rig.core.update_canary()


def reply(rig: RoutingRig, slot: str, latency_ms: float, count: int = 300) -> None:
    for _ in range(count):
        rig.core.table.stats.record_reply(slot, latency_ms)


def measured(rig: RoutingRig, slot: str) -> float:
    return rig.core.table.stats.slot(slot).latency.percentile_ms(95)


def slow_candidate(rig: RoutingRig) -> None:
    """Let the candidate be slow, before the champion is measured."""
    reply(rig, 'b', SLOW_MS)
    reply(rig, 'a', FAST_MS, count=30)
    poll(rig)


def test_a_slow_policy_is_rolled_back(rig):
    slow_candidate(rig)
    reply(rig, 'a', FAST_MS)
    poll(rig)
    assert rig.core.canary.canary.state is CanaryPhase.ROLLED_BACK
    assert 'latency p95 900 ms' in rig.core.canary.canary.text


@pytest.mark.parametrize('first', ['chunk', 'status'])
def test_the_next_policy_is_not_rolled_back_for_its_predecessor(rig, first):
    slow_candidate(rig)
    if first == 'chunk':
        with rig.core.table.lock:
            rig.core._record_swap(rig.replicas['/b1'], 'act@c')
    rig.hear('/b1', policy='act@c', swapped=True)
    assert math.isnan(measured(rig, 'b'))
    rig.core.canary.canary.record.planned_policy = 'act@c'
    poll(rig, 2)
    reply(rig, 'a', FAST_MS)
    reply(rig, 'b', FAST_MS, count=110)
    poll(rig)
    assert rig.core.canary.canary.state is CanaryPhase.RUNNING, rig.core.canary.canary.text
    assert measured(rig, 'b') == FAST_MS


def test_each_step_measures_both_slots_anew(rig):
    slow_candidate(rig)
    rig.command(PROMOTE, '', 'seen enough')
    poll(rig)
    assert math.isnan(measured(rig, 'a')) and math.isnan(measured(rig, 'b'))
    reply(rig, 'a', FAST_MS)
    reply(rig, 'b', FAST_MS)
    poll(rig, 3)
    assert measured(rig, 'b') == FAST_MS, 'within the step they go on'


def test_the_watch_compares_with_the_champion_of_the_last_step(rig):
    for _ in range(2):
        reply(rig, 'a', FAST_MS)
        reply(rig, 'b', FAST_MS)
        rig.command(PROMOTE, '', 'seen enough')
        poll(rig)
    assert rig.core.canary.canary.is_watching
    assert measured(rig, 'a') == FAST_MS and math.isnan(measured(rig, 'b'))
    reply(rig, 'b', SLOW_MS)
    poll(rig)
    assert 'latency p95 900 ms, champion 20 ms' in rig.core.canary.canary.text


def test_a_rollout_that_begins_again_measures_anew(rig):
    slow_candidate(rig)
    rig.command(ROLL_BACK, '', 'too slow')
    poll(rig)
    rig.command(RESUME, '', 'the network was repaired')
    poll(rig)
    assert math.isnan(measured(rig, 'b'))


def test_a_step_that_another_router_begins_is_one_here(rig):
    slow_candidate(rig)
    snapshot = rig.core.canary.canary.snapshot()
    rig.core.writer.learn((CANARY, ''), snapshot, 1)
    rig.core.canary.adopt()
    poll(rig)
    assert measured(rig, 'b') == SLOW_MS, 'the same step'
    snapshot['counts'] = {
        arm: {**counts, 'restarts': counts['restarts'] + 1}
        for arm, counts in snapshot['counts'].items()
    }
    rig.core.writer.learn((CANARY, ''), snapshot, 2)
    rig.core.canary.adopt()
    poll(rig)
    assert math.isnan(measured(rig, 'a')) and math.isnan(measured(rig, 'b'))
