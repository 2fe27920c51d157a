# SPDX-License-Identifier: Apache-2.0
"""Callers of a gateway alone: a shadow, outcomes for a canary, its promotion and its rollback."""

from __future__ import annotations

from collections import Counter

import pytest
from support.gateway.node_rig import caller, GatewayNodeRig, STATE
from support.router.rollout_rig import PLAN

from lerobot_serve.gateway.callers.episode_names import scoped_name
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve_interfaces.msg import CanaryState, EpisodeOutcome, ShadowSummary

LIMIT_S = 60.0
# a sample is given up after 30 s
pytestmark = pytest.mark.long


@pytest.fixture
def gateway(gateway):
    return gateway()


class Callers:
    """Three callers that play one episode after the other, and their judge."""

    def __init__(self, rig, gateway: GatewayNodeRig) -> None:
        self.rig, self.gateway = rig, gateway
        self.slots: Counter[str] = Counter()

    def play(self, succeeds: dict[str, bool]) -> str:
        """Play an episode, report its outcome under its name at the router; return the slot."""
        number = self.slots.total()
        who, name = str(number % 3), f'episode-{number}'
        slot = self.gateway.predict(who, episode_id=name).slot
        self.slots[slot] += 1
        at_router = scoped_name(caller(who).episode_owner, name)
        outcome = EpisodeOutcome.SUCCESS if succeeds[slot] else EpisodeOutcome.FAILURE
        assert self.rig.report(at_router, outcome).accepted
        return slot

    def play_until(self, state: int, succeeds: dict[str, bool]) -> CanaryState:
        def reached() -> CanaryState | None:
            self.play(succeeds)
            now = self.rig.watch.last.get(CanaryState)
            return now if now and now.state == state else None

        return self.rig.wait(reached, f'the canary in state {state}', LIMIT_S)


def canary(rig, gateway: GatewayNodeRig, **router: object) -> Callers:
    rig.slots(**{**PLAN, **router})
    rig.wait(lambda: rig.get('split_percent') == 50, 'the first step')
    return Callers(rig, gateway)


@pytest.mark.slow
def test_outcomes_of_callers_promote_a_candidate_and_the_trace_is_audited(router_rig, gateway):
    folder = router_rig.folder / 'traces'
    callers = canary(router_rig, gateway, trace_folder=folder)
    state = callers.play_until(CanaryState.PROMOTED, {'a': True, 'b': True})
    assert 'all new episodes to the candidate' in state.text
    assert all(callers.slots[slot] for slot in 'ab')
    router_rig.wait(lambda: router_rig.get('split_percent') == 0, 'all episodes to slot b')
    assert callers.play({'a': True, 'b': True}) == 'b'
    process = router_rig.fleet.processes['router']
    process.terminate()
    assert process.wait(30) == 0
    (file,) = folder.glob('*.jsonl')
    kinds = Counter(record['kind'] for _, record in read_records(file))
    episodes = callers.slots.total()
    assert kinds['placement'] == kinds['request'] == episodes
    found = run_audit([folder])
    assert found.outcome in (CheckStatus.HOLDS, CheckStatus.HOLDS_AS_RECORDED)
    assert (found.uncaged.callers, found.episodes) == (3, episodes)


@pytest.mark.slow
def test_outcomes_of_callers_roll_a_candidate_back(router_rig, gateway):
    callers = canary(router_rig, gateway)
    state = callers.play_until(CanaryState.ROLLED_BACK, {'a': True, 'b': False})
    assert 'worse than the champion' in state.text
    assert callers.play({'a': True, 'b': True}) == 'a'


def test_nan_for_callers_rolls_the_candidate_back(router_rig, gateway):
    callers = canary(router_rig, gateway, slot_unhealthy_threshold=3)
    name = router_rig.episode('b', owner=caller('0').episode_owner)
    for _ in range(3):
        with pytest.raises(PredictionError) as refused:
            gateway.predict('0', episode_id=name, task='nan')
        assert refused.value.status is Status.NOT_FINITE
    state = router_rig.wait(
        lambda: (
            (now := router_rig.watch.last[CanaryState]).state == CanaryState.ROLLED_BACK and now
        ),
        'the rollback',
    )
    assert 'not_finite' in state.text
    assert {callers.play({'a': True, 'b': True}) for _ in range(4)} == {'a'}


@pytest.mark.slow
def test_a_shadow_gets_the_requests_of_callers_and_has_nothing_to_compare(router_rig, gateway):
    router_rig.server('live', 'prod')
    router_rig.server('shadow', 'prod', options='&offset=0.1')
    router_rig.router(slot_prod=['live'], shadow_server='/shadow/policy_server')
    router_rig.wait_for_health('healthy')
    for number in range(6):
        prediction = gateway.predict(str(number % 3))
        assert prediction.actions[0].tolist() == pytest.approx(STATE.tolist(), abs=1e-6)
    steering = router_rig.steering('shadow')
    router_rig.wait(lambda: len(steering.events('predict')) >= 3, 'copies at the shadow')

    # callers report no executed actions
    def is_unmatched() -> ShadowSummary | None:
        summary = router_rig.watch.last.get(ShadowSummary)
        reasons = {drop.reason for drop in summary.dropped} if summary else ()
        return summary if 'shadow_unmatched' in reasons else None

    assert router_rig.wait(is_unmatched, 'samples that were not compared', LIMIT_S).samples == 0
