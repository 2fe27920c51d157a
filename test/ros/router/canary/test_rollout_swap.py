# SPDX-License-Identifier: Apache-2.0
"""A server swaps its policy during a trial: what was counted is of another policy."""

from __future__ import annotations

import pytest
from support.nodes.swapping import Swapper
from support.router.rollout_rig import Fleet, fleet_of, PLAN

from lerobot_serve_interfaces.msg import CanaryState
from lerobot_serve_interfaces.srv import ControlSlot

WELL = {'a': True, 'b': True}
# of twenty episodes, which do not suffice
LONG_STEPS = ['50:200:0', '100']
LONG_PLAN = {**PLAN, 'canary.plan': str(LONG_STEPS)}


@pytest.fixture
def fleet(router_rig) -> Fleet:
    """Servers that may swap, and a trial with twenty episodes."""
    root = str(router_rig.folder)
    for slot in ('a', 'b'):
        router_rig.server(slot, slot, policy_root=root)
    router_rig.router(slot_a=['a'], slot_b=['b'], **LONG_PLAN)
    router_rig.wait_for_health('healthy')
    made = fleet_of(router_rig)
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    assert {made.play(WELL) for _ in range(20)} == {'a', 'b'}
    router_rig.wait(lambda: counted(state(router_rig)) == 20, 'all outcomes are counted')
    return made


def state(rig) -> CanaryState:
    return rig.watch.last[CanaryState]


def counted(now: CanaryState) -> int:
    return now.candidate_successes + now.champion_successes


@pytest.mark.slow
def test_another_policy_in_slot_b_gets_no_episode_and_no_evidence(fleet):
    rig = fleet.rig
    planned = rig.slot('b').policy
    path = rig.steering('other').folder_path(chunk=30)
    other = Swapper(rig.node, '/b/policy_server').run(path).policy
    now = rig.wait(
        lambda: state(rig).state == CanaryState.WAITING and state(rig), 'the trial is over'
    )
    assert (now.share_percent, rig.get('split_percent')) == (0, 100)
    assert now.planned_policy == planned
    assert {fleet.play(WELL) for _ in range(10)} == {'a'}
    rig.wait(lambda: rig.slot('b').policy == other, 'the slot has the other policy')
    # begun for it: from the first step, with nothing counted
    request = ControlSlot.Request(command=ControlSlot.Request.CANARY_START, reason='a test')
    request.plan = LONG_STEPS
    answer = rig.ask(ControlSlot, 'control_slot', request)
    assert answer.success, answer.text
    now = rig.wait(
        lambda: state(rig).state == CanaryState.RUNNING and state(rig), 'it begins again'
    )
    assert (now.planned_policy, now.step, counted(now)) == (other, 0, 0)


@pytest.mark.slow
def test_another_champion_restarts_the_trial(fleet):
    rig = fleet.rig
    path = rig.steering('other').folder_path(chunk=30)
    Swapper(rig.node, '/a/policy_server').run(path)
    now = rig.wait(
        lambda: state(rig).state == CanaryState.RUNNING and not counted(state(rig)) and state(rig),
        'it begins again',
    )
    assert (now.step, now.share_percent) == (0, 50)
    assert {fleet.play(WELL) for _ in range(20)} == {'a', 'b'}
    rig.wait(lambda: counted(state(rig)) == 20, 'it counts again')
