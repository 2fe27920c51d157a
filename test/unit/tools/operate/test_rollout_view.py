# SPDX-License-Identifier: Apache-2.0
"""The state of a rollout as text and JSON, without a router."""

from __future__ import annotations

import math

import pytest
from support.tools.operator_states import canary_of, changed, replica_of, router_of, slot_of

from lerobot_serve.contract.records import GuardState, ShadowSummary
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.operate.fleet_state import headroom
from lerobot_serve.tools.operate.rollout.rollout_view import (
    bars,
    changes,
    EvidenceBar,
    guard_words,
    guards,
    hours_left,
    rollout_report,
)

CANARY = canary_of(
    CanaryPhase.RUNNING,
    'v2@2',
    'v1@1',
    step_count=3,
    share_percent=25,
    text='running: step 1 of 3',
    estimated_remaining_episodes=30,
    candidate_successes=8,
    candidate_failures=2,
    champion_successes=27,
    champion_failures=3,
    log10_evidence_not_worse=0.65,
    step_elapsed_s=3600.0,
    guards=(
        GuardState('failed_replies', '%', 1.0, 2.0, 100, 100),
        GuardState('latency', 'ms', 8.0, 10.0, 50, 100),
        GuardState('cage', '%', 0.25, 1.0, 1200, 3000, 0.4),
        GuardState('halted', '%', math.nan, 5.0, 0, 2),
        GuardState('divergence', 'spreads', 1.5, 0.0, 40, 20),
        # of a newer router
        GuardState('smell', '%', 1.0, 2.0),
    ),
)
SLOTS = (
    slot_of('a', 'v1@1', share_percent=75, chunks=100, replicas=(replica_of('/a', 'READY'),)),
    slot_of(
        'b',
        'v2@2',
        share_percent=25,
        chunks=99,
        requests_failed=1,
        replicas=(replica_of('/b', 'READY', latency_ms_p95=8.0),),
    ),
)
ROUTER = router_of('/policy_router', 'healthy', split_percent=75, slots=SLOTS, canary=CANARY)
SETTINGS = RouterParameters(canary_plan=('25', '50', '100'), canary_minimum_step_s=600.0)


SHADOW = ShadowSummary(
    shadow_policy='v2@2',
    hours_in_shadow=0.5,
    episodes=12,
    samples=340,
    divergence_mean=0.0123,
    cage_trips=3,
    latency_ms_p95=20.0,
    unmet_requirements='38 more episodes in shadow',
)
NEW_SHADOW = ShadowSummary(divergence_mean=math.nan, latency_ms_p95=math.nan)
NASTY = 'a\x1b[2J\nslot c: HEALTHY'
NASTY_ROUTER = changed(
    ROUTER,
    canary=changed(CANARY, text=NASTY, candidate_policy=NASTY),
    slots=(changed(SLOTS[0], text=NASTY, policy=NASTY), SLOTS[1]),
)
GONE = changed(CANARY, state=CanaryPhase.ROLLED_BACK, estimated_remaining_episodes=-1)
QUIET = router_of('/policy_router', text='waits', slots=SLOTS[:1])
REPORTS = {
    'running': (ROUTER, SETTINGS, None),
    'rolled back': (changed(ROUTER, canary=GONE), SETTINGS, None),
    'in shadow, without a plan': (QUIET, RouterParameters(), SHADOW),
    'ready in shadow': (QUIET, RouterParameters(), changed(SHADOW, unmet_requirements='')),
    'a shadow without a sample': (QUIET, RouterParameters(), NEW_SHADOW),
    'texts of the network': (
        NASTY_ROUTER,
        SETTINGS,
        ShadowSummary(shadow_policy=NASTY, unmet_requirements=NASTY),
    ),
}


@pytest.mark.golden
def test_a_rollout_is_shown_as_agreed(golden):
    golden.holds_reports('rollout_status', {n: rollout_report(*r) for n, r in REPORTS.items()})


@pytest.mark.parametrize('phase', CanaryPhase)
def test_only_a_rollout_on_trial_has_bars_and_guards(phase):
    router = changed(ROUTER, canary=changed(CANARY, state=phase))
    found = bars(router, SETTINGS)
    assert bool(found) == bool(guards(router.canary)) == (phase in ON_TRIAL)
    assert not bars(router, RouterParameters())


@pytest.mark.parametrize(
    ('episodes', 'outcomes', 'elapsed_s', 'hours'),
    [(30, 10, 3600.0, 3.0), (-1, 10, 3600.0, None), (30, 0, 3600.0, None), (30, 1, 0.0, None)],
)
def test_hours_at_the_present_rate(episodes, outcomes, elapsed_s, hours):
    canary = canary_of(
        estimated_remaining_episodes=episodes,
        candidate_successes=outcomes,
        step_elapsed_s=elapsed_s,
    )
    assert hours_left(canary) == hours


@pytest.mark.parametrize(
    ('evidence', 'ratio'), [(-1.0, 0.0), (0.0, 0.0), (1.0, 0.5), (2.0, 1.0), (9.0, 1.0)]
)
def test_a_bar_stays_within_its_ends(evidence, ratio):
    bar = EvidenceBar('promote', evidence, 2.0)
    assert bar.ratio == ratio
    assert bar.text.count('#') == round(30 * ratio)


def test_a_guard_above_its_limit_says_so():
    guard = GuardState('cage', '%', 3.0, 2.0)
    assert 'above the limit' in guard_words(guard)
    assert headroom(guard) == pytest.approx(-0.5)
    assert headroom(changed(guard, limit=0.0)) is None


def test_a_change_to_a_text_of_the_network_controls_no_terminal():
    assert all(line.isprintable() for line in changes(ROUTER, NASTY_ROUTER))


def test_changes_name_what_differs_and_nothing_else():
    assert changes(ROUTER, ROUTER) == []
    after = changed(
        ROUTER,
        split_percent=100,
        slots=(SLOTS[0], changed(SLOTS[1], state='BARRED', share_percent=0, chunks=500)),
        canary=changed(CANARY, state=CanaryPhase.ROLLED_BACK, candidate_successes=9),
    )
    assert changes(ROUTER, after) == [
        'rollout: running -> rolled back',
        'split to slot a: 75 % -> 100 %',
        'slot b: HEALTHY -> BARRED',
        'share of slot b: 25 % -> 0 %',
    ]
