# SPDX-License-Identifier: Apache-2.0
"""A candidate on its way from few episodes to all, or back, with a real router and servers."""

from __future__ import annotations

import time

import msgspec
import pytest
from support.router.rollout_rig import canary, SUCCESS

from lerobot_serve.contract.data_path.execution_report import encode, ExecutionReport, Halt
from lerobot_serve.contract.schema import Status
from lerobot_serve.router.canary.gate_record import GateRecord, write_record
from lerobot_serve.router.placement.split import bucket
from lerobot_serve_interfaces.msg import CanaryState
from lerobot_serve_interfaces.srv import ControlSlot


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


@pytest.mark.slow
def test_one_that_is_worse_only_after_its_promotion_is_rolled_back(router_rig):
    fleet = canary(router_rig)
    fleet.play_until(CanaryState.PROMOTED, succeeds={'a': True, 'b': True})
    state = router_rig.wait(
        lambda: 'watched for' in (now := router_rig.watch.last[CanaryState]).text and now,
        'the watch',
    )
    assert 'of 500 episodes' in state.text
    assert state.guards[0].name == 'failed_replies'
    state = fleet.play_until(CanaryState.ROLLED_BACK, succeeds={'a': True, 'b': False})
    assert 'since its promotion the candidate is worse by more than 30 percentage' in state.text
    assert router_rig.get('split_percent') == 100
    assert {fleet.play({'a': True, 'b': True}) for _ in range(5)} == {'a'}


@pytest.mark.slow
def test_one_that_is_not_worse_is_watched_no_longer_also_by_a_parameter(router_rig):
    fleet = canary(router_rig)
    fleet.play_until(CanaryState.PROMOTED, succeeds={'a': True, 'b': True})
    assert not router_rig.set(**{'canary.watch_episodes': 3, 'canary.watch_hours': 0.0})
    for _ in range(3):
        fleet.play({'b': True})
    state = router_rig.wait(
        lambda: 'nothing is worse' in (now := router_rig.watch.last[CanaryState]).text and now,
        'the end of the watch',
    )
    assert (state.state, list(state.guards)) == (CanaryState.PROMOTED, [])
    for _ in range(30):
        fleet.play({'b': False})
    time.sleep(0.3)
    assert router_rig.watch.last[CanaryState].state == CanaryState.PROMOTED


@pytest.mark.slow
def test_a_guard_rolls_back_a_promoted_policy_within_a_second(router_rig):
    fleet = canary(router_rig, **{'canary.minimum_replies': 20})
    fleet.play_until(CanaryState.PROMOTED, succeeds={'a': True, 'b': True})
    router_rig.wait(lambda: router_rig.get('split_percent') == 0, 'all episodes to the candidate')
    first_ns, replies = time.monotonic_ns(), 0
    while router_rig.watch.last[CanaryState].state != CanaryState.ROLLED_BACK:
        fleet.client.round_trip(episode_id=f'bad-{replies}', task='nan')
        replies += 1
        assert replies < 2000
    took_ms = (time.monotonic_ns() - first_ns) / 1e6
    print(f'rolled back {took_ms:.0f} ms and {replies} replies after the first failure')
    assert 'of the candidate' in router_rig.watch.last[CanaryState].text
    assert router_rig.get('split_percent') == 100


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


def test_robots_that_halt_roll_the_candidate_back_though_nothing_else_arrives(router_rig):
    """Each robot of the candidate latches, reports it with its last request, and is silent."""
    fleet = canary(router_rig)
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    first, second = [n for n in (f'halts-{i}' for i in range(100)) if bucket(n) >= 50][:2]

    def play_until_halt(episode_id: str) -> None:
        for halt in (Halt.NONE, Halt.LATCHED):
            report = encode(ExecutionReport(halt=halt))
            fleet.client.round_trip(episode_id=episode_id, extensions=(report,))

    def latest() -> CanaryState:
        return router_rig.watch.last[CanaryState]

    play_until_halt(first)
    router_rig.wait(lambda: 'halted once' in latest().text, 'it is said')
    halted = next(guard for guard in latest().guards if guard.name == 'halted')
    assert (halted.value, halted.samples, halted.minimum_samples) == (100.0, 1, 2)
    play_until_halt(second)
    state = router_rig.wait(
        lambda: (now := latest()).state == CanaryState.ROLLED_BACK and now, 'the roll back'
    )
    assert 'robots halted 2 times in 2 episodes of the candidate' in state.text
    assert state.planned_policy == state.candidate_policy


def test_a_candidate_without_a_gate_record_drives_no_robot(router_rig, tmp_path):
    for slot in ('a', 'b'):
        router_rig.server(slot, slot)
    router_rig.router(slot_a=['a'], slot_b=['b'], gate_folder=str(tmp_path / 'gates'))
    router_rig.wait_for_health('slot_b_drained')
    client = router_rig.robot()
    assert client.round_trip(episode_id=router_rig.episode('b')).slot == 'a'
    champion, candidate = (slot.policy for slot in router_rig.state.slots)
    record = GateRecord(candidate, champion, 'passed', '', 30, 100, '', '')
    write_record(tmp_path / 'gates', record)
    router_rig.wait_for_health('healthy')
    assert client.round_trip(episode_id=router_rig.episode('b', salt='new')).slot == 'b'
    write_record(
        tmp_path / 'gates', msgspec.structs.replace(record, verdict='refused', text='NaN')
    )
    router_rig.wait_for_health('slot_b_drained')
    assert client.round_trip(episode_id=router_rig.episode('b', salt='newer')).slot == 'a'


def test_an_operator_pauses_promotes_and_rolls_back(router_rig):
    fleet = canary(router_rig)
    request = ControlSlot.Request
    router_rig.wait(lambda: router_rig.get('split_percent') == 50, 'the first step')
    assert router_rig.control(request.CANARY_PAUSE).success
    assert router_rig.watch.last[CanaryState] is not None
    for _ in range(10):
        fleet.play({'a': True, 'b': True})
    assert router_rig.get('split_percent') == 50
    assert router_rig.control(request.CANARY_RESUME).success
    answer = router_rig.control(request.CANARY_PROMOTE, reason='it is good')
    assert answer.success, answer.text
    assert router_rig.get('split_percent') == 0
    assert router_rig.control(request.CANARY_ROLLBACK, reason='it was not').success
    assert router_rig.get('split_percent') == 100
    refused = router_rig.control(request.CANARY_PAUSE)
    assert not refused.success
    assert 'it was not' in refused.text


def test_a_plan_that_makes_no_sense_is_refused(router_rig):
    router_rig.slots()
    assert "must end with '100'" in router_rig.set(canary__plan=['5', '25'])
    assert router_rig.watch.last.get(CanaryState, CanaryState()).state == CanaryState.OFF
    refused = router_rig.control(ControlSlot.Request.CANARY_PROMOTE)
    assert not refused.success
    assert 'no canary: canary.plan is empty' in refused.text
    assert not router_rig.set(canary__plan=['5', '100'])
    router_rig.wait(lambda: router_rig.get('split_percent') == 95, 'the first step')


def test_an_outcome_of_an_episode_that_was_never_here_is_refused(router_rig):
    router_rig.slots()
    client = router_rig.robot()
    assert client.round_trip(episode_id='known').status == Status.OK
    assert router_rig.report('known', SUCCESS).accepted
    answer = router_rig.report('unknown', SUCCESS)
    assert not answer.accepted
    assert "no episode 'unknown' was routed here" in answer.text
