# SPDX-License-Identifier: Apache-2.0
"""A candidate on its way from few episodes to all, or back, with a real router and servers."""

from __future__ import annotations

import time

import pytest
from support.router.rollout_rig import canary, PLAN

from lerobot_serve.router.placement.split import bucket
from lerobot_serve_interfaces.msg import CanaryState


@pytest.mark.slow
def test_a_candidate_that_does_as_well_gets_all_episodes(router_rig):
    fleet = canary(router_rig)
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    refusal = router_rig.set(split_percent=10)
    assert 'the canary sets it' in refusal
    state = fleet.play_until(CanaryState.PROMOTED, succeeds={'a': True, 'b': True})
    assert state.share_percent == 100
    assert 'all new episodes to the candidate' in state.text
    assert router_rig.get('split_percent') == 0
    assert {fleet.play({'a': True, 'b': True}) for _ in range(5)} == {'b'}


def test_a_candidate_that_fails_at_its_task_is_rolled_back(router_rig):
    fleet = canary(router_rig)
    state = fleet.play_until(CanaryState.ROLLED_BACK, succeeds={'a': True, 'b': False})
    assert 'worse than the champion' in state.text
    assert router_rig.get('split_percent') == 100
    assert {fleet.play({'a': True, 'b': True}) for _ in range(5)} == {'a'}


def test_a_guard_rolls_back_within_a_second(router_rig):
    fleet = canary(router_rig, slot_unhealthy_threshold=3)
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    in_b = next(n for n in (f'bad-{i}' for i in range(100)) if bucket(n) >= 50)
    for _ in range(3):
        fleet.client.round_trip(episode_id=in_b, task='nan')
    failed_ns = time.monotonic_ns()
    # from the drain on, whatever the canary says, no new episode begins there
    new = [f'new-{i}' for i in range(20)]
    assert {fleet.client.round_trip(episode_id=name).slot for name in new} == {'a'}
    state = router_rig.wait(
        lambda: (
            (now := router_rig.watch.last[CanaryState]).state == CanaryState.ROLLED_BACK and now
        ),
        'the roll back',
    )
    print(f'rolled back {(time.monotonic_ns() - failed_ns) / 1e6:.0f} ms after the failure')
    assert 'not_finite' in state.text
    assert router_rig.get('split_percent') == 100


@pytest.mark.slow
def test_it_goes_on_where_it_was_after_the_router_was_killed(router_rig):
    fleet = canary(router_rig)
    fleet.play_until(CanaryState.ROLLED_BACK, succeeds={'a': True, 'b': False})
    router_rig.kill('router')
    router_rig.watch.last.clear()
    router_rig.router(slot_a=['a'], slot_b=['b'], split_percent=50, **PLAN)
    state = router_rig.wait(lambda: router_rig.watch.last.get(CanaryState), 'the canary')
    assert state.state == CanaryState.ROLLED_BACK
    router_rig.wait(lambda: router_rig.get('split_percent') == 100, 'the split of before')
