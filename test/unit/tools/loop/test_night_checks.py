# SPDX-License-Identifier: Apache-2.0
"""Each check of a simulated night fails when what it guards is broken."""

from __future__ import annotations

import pytest
from support.loop.played_fleet import V1, V2, V3
from support.night.checks import Checks, HEARS_S, PROGRESS_S
from support.night.clock import NightClock
from support.night.world import FALLEN, Fate, World

from lerobot_serve.router.canary.gate_record import GateRecord, write_record
from lerobot_serve_interfaces.msg import CanaryState


@pytest.fixture
def checks(tmp_path) -> Checks:
    return Checks(NightClock(), World(V1, 0), tmp_path, V1)


def admit(checks: Checks, policy: str, verdict: str = 'passed', parent: str = V1) -> None:
    write_record(checks._gates, GateRecord(policy, parent, verdict, '', 30, 60, '', ''))


def canary(state: int, policy: str = V2) -> CanaryState:
    return CanaryState(state=state, candidate_policy=policy, planned_policy=policy)


def test_no_episode_without_a_gate_that_admits_against_this_champion(checks):
    with pytest.raises(AssertionError, match='no gate record'):
        checks.on_placed('e', 'b', V2)
    admit(checks, V2, 'refused')
    with pytest.raises(AssertionError, match='its gate refused'):
        checks.on_placed('e', 'b', V2)
    admit(checks, V2, parent=V3)
    with pytest.raises(AssertionError, match=V3):
        checks.on_placed('e', 'b', V2)
    admit(checks, V2)
    checks.on_placed('e', 'b', V2)
    checks.on_placed('e', 'b', V1)


def test_another_policy_in_an_episode_is_flagged(checks):
    checks.on_chunk('e', V1, False)
    checks.on_chunk('f', V2, False)
    checks.on_chunk('e', V2, True)
    with pytest.raises(AssertionError, match='without POLICY_CHANGED'):
        checks.on_chunk('e', V1, False)


@pytest.mark.parametrize('state', [CanaryState.WAITING, CanaryState.RUNNING])
def test_one_that_was_rolled_back_starts_no_more(checks, state):
    checks.on_canary(canary(state))
    checks.on_canary(canary(CanaryState.ROLLED_BACK))
    with pytest.raises(AssertionError, match='starts again'):
        checks.on_canary(canary(state))


def test_one_that_was_rolled_back_begins_no_episode(checks):
    admit(checks, V2)
    checks.on_canary(canary(CanaryState.ROLLED_BACK))
    with pytest.raises(AssertionError, match='was rolled back'):
        checks.on_placed('e', 'b', V2)


def test_the_champion_was_promoted(checks):
    with pytest.raises(AssertionError, match='never promoted'):
        checks.on_champion(V2)
    checks.on_canary(canary(CanaryState.PROMOTED))
    checks.on_champion(V2)


def test_something_happens_in_a_while(checks):
    checks.on_count(1)
    checks._clock.pass_time(PROGRESS_S - 1)
    checks.on_count(2)
    checks._clock.pass_time(PROGRESS_S)
    with pytest.raises(AssertionError, match='nothing happened'):
        checks.on_count(2)


def test_a_learner_builds_on_none_that_was_rolled_back(checks):
    checks.on_canary(canary(CanaryState.ROLLED_BACK))
    checks.on_parent(V1, 100.0)
    # it has not heard of it yet
    checks.on_parent(V2, 1.0)
    checks._clock.pass_time(5.0)
    checks.on_parent(V2, 100.0)
    checks._clock.pass_time(HEARS_S)
    with pytest.raises(AssertionError, match='the learner builds on'):
        checks.on_parent(V2, 100.0)


def test_a_version_that_falls_is_good_until_its_promotion():
    world = World(V1, 0)
    for policy in (V2, V3):
        world.meet(policy, V1)
    assert world.fates[V3[-16:]] is Fate.FALLS
    assert world.rate(V3) > world.rate(V1)
    world.promote(V3)
    assert world.rate(V3) == FALLEN
