# SPDX-License-Identifier: Apache-2.0
"""The state of a rollout as text and JSON, without a router."""

from __future__ import annotations

import json
import math

import pytest
from support.tools.operator_states import canary_of, changed, replica_of, router_of, slot_of

from lerobot_serve.contract.records import GuardState, ShadowSummary
from lerobot_serve.router.canary.plan import GuardLimits, parse_plan, Terms
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import headroom
from lerobot_serve.tools.operate.rollout.rollout_view import (
    as_json,
    as_text,
    bar_text,
    changes,
    EvidenceBar,
    guard_text,
    hours_left,
    rollout_view,
    RolloutSettings,
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
SETTINGS = RolloutSettings(parse_plan(['25', '50', '100']), Terms(), GuardLimits())


def test_a_running_rollout_has_bars_guards_and_the_time_left():
    view = rollout_view(ROUTER, SETTINGS)
    promote, back = view.bars
    assert promote.needed == pytest.approx(1.30103)
    assert promote.ratio == pytest.approx(0.5, abs=0.01)
    assert (back.ratio, back.needed) == (0.0, pytest.approx(1.60206))
    assert (view.episodes_left, view.hours_left) == (30, pytest.approx(3.0))
    text = as_text(view)
    for part in (
        '/policy_router: running, step 1 of 3, 25 % of new episodes',
        'plan       25 % for at least 20 episodes and 600 s, 50 % for at least 20 episodes',
        ' and 600 s, then 100 %',
        'candidate  v2@2, 8 of 10 episodes succeeded',
        'champion   v1@1, 27 of 30 episodes succeeded',
        'promote    [###############---------------]  50 %',
        'guard failed requests: 1%, limit 2%, 50 % left\n',
        'guard latency p95: 8 ms, limit 10 ms, 20 % left, 50 of 100 replies\n',
        'guard changed by the cage: 0.25%, limit 1%, 75 % left, 1200 of 3000 commands, alarm 40 %',
        'guard robots that halted: limit 5%; no data yet, 0 of 2 halts\n',
        'guard divergence in shadow: off\n',
        'about 30 more episodes of the candidate, 3 hours at the present rate',
    ):
        assert part in text, part
    assert json.loads(json.dumps(as_json(view)))['bars'][0]['decision'] == 'promote'


@pytest.mark.parametrize('phase', CanaryPhase)
def test_only_a_rollout_on_trial_has_bars_and_guards(phase):
    view = rollout_view(changed(ROUTER, canary=changed(CANARY, state=phase)), SETTINGS)
    assert bool(view.bars) == bool(view.guards) == (phase in ON_TRIAL)
    assert phase.word.replace('_', ' ') in as_text(view)


def test_a_shadow_without_a_sample_is_json_and_text():
    shadow = ShadowSummary(divergence_mean=math.nan, latency_ms_p95=math.nan)
    view = rollout_view(ROUTER, SETTINGS, shadow)
    found = json.loads(json.dumps(as_json(view), allow_nan=False))['shadow']
    assert found['divergence'] is None and found['latency_ms_p95'] is None
    text = as_text(view)
    assert 'nan' not in text and 'latency p95 not known yet' in text and 'apart' not in text


def test_a_shadow_shows_what_the_candidate_lacks():
    shadow = ShadowSummary(
        shadow_policy='v2@2',
        hours_in_shadow=0.5,
        episodes=12,
        samples=340,
        divergence_mean=0.0123,
        cage_trips=3,
        latency_ms_p95=20.0,
        unmet_requirements='38 more episodes in shadow',
    )
    text = as_text(rollout_view(ROUTER, SETTINGS, shadow))
    assert 'shadow v2@2: 340 requests of 12 episodes in 0.5 h, 0.0123 apart' in text
    assert 'slot b lacks: 38 more episodes in shadow' in text
    unknown = changed(shadow, latency_ms_p95=math.nan)
    assert 'latency p95 not known yet' in as_text(rollout_view(ROUTER, SETTINGS, unknown))
    ready = changed(shadow, unmet_requirements='')
    assert 'lacks' not in as_text(rollout_view(ROUTER, SETTINGS, ready))


def test_without_a_plan_there_are_no_bars():
    assert rollout_view(ROUTER, RolloutSettings()).bars == ()


@pytest.mark.parametrize(
    ('episodes', 'outcomes', 'elapsed_s', 'hours'),
    [(30, 10, 3600.0, 3.0), (None, 10, 3600.0, None), (30, 0, 3600.0, None), (30, 1, 0.0, None)],
)
def test_hours_at_the_present_rate(episodes, outcomes, elapsed_s, hours):
    assert hours_left(episodes, outcomes, elapsed_s) == hours


@pytest.mark.parametrize(
    ('evidence', 'ratio'), [(-1.0, 0.0), (0.0, 0.0), (1.0, 0.5), (2.0, 1.0), (9.0, 1.0)]
)
def test_a_bar_stays_within_its_ends(evidence, ratio):
    bar = EvidenceBar('promote', evidence, 2.0)
    assert bar.ratio == ratio
    assert bar_text(bar).count('#') == round(30 * ratio)


def test_a_guard_above_its_limit_says_so():
    guard = GuardState('cage', '%', 3.0, 2.0)
    assert 'above the limit' in guard_text(guard)
    assert headroom(guard) == pytest.approx(-0.5)
    assert headroom(changed(guard, limit=0.0)) is None


def test_a_guard_of_a_newer_router_has_its_own_name():
    assert guard_text(GuardState('smell', '%', 1.0, 2.0)) == 'smell: 1%, limit 2%, 50 % left'


def test_texts_of_the_network_control_no_terminal():
    nasty = 'a\x1b[2J\nslot c: HEALTHY'
    canary = changed(CANARY, text=nasty, candidate_policy=nasty)
    slots = (changed(SLOTS[0], text=nasty, policy=nasty), SLOTS[1])
    router = changed(ROUTER, canary=canary, slots=slots)
    shadow = ShadowSummary(shadow_policy=nasty, unmet_requirements=nasty)
    text = as_text(rollout_view(router, SETTINGS, shadow))
    other = changed(shadow, shadow_policy='x', unmet_requirements='y')
    plain = as_text(rollout_view(ROUTER, SETTINGS, other))
    assert '\x1b' not in text
    assert len(text.splitlines()) == len(plain.splitlines())
    assert all(line.isprintable() for line in changes(ROUTER, router))


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
