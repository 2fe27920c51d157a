# SPDX-License-Identifier: Apache-2.0
"""An operator's word: each command does what it says, or says why not and what there is."""

from __future__ import annotations

import pytest
from support.router.router_core_rig import RoutingRig, SECOND, TWO_SLOTS

from lerobot_serve.router.api.slot_commands import SlotCommandRejected
from lerobot_serve.router.replicas.slot import overall_health
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
PLAN = {**TWO_SLOTS, 'canary_plan': ('5', '100')}


@pytest.fixture
def rig(make_router):
    return make_router()


@pytest.fixture
def canary(make_router):
    """A router whose canary runs its first step."""
    built = make_router(**PLAN)
    built.core.update_canary()
    return built


def failing(rig: RoutingRig, slot: str) -> None:
    for _ in range(100):
        rig.slots[slot].health.record_failure('timeout', rig.now_ns)


def test_drain_keeps_new_episodes_away_until_restore(rig):
    text = rig.command(R.DRAIN, 'b', 'maintenance')
    assert text == 'slot b receives no new episodes; running ones leave at their end, within 60 s'
    slot = rig.slots['b']
    assert not slot.is_healthy
    assert slot.text == 'drained by an operator: maintenance'
    # clean answers do not bring back what an operator has drained
    for _ in range(10):
        slot.health.record_success()
    assert not slot.is_healthy
    assert rig.command(R.RESTORE, 'b', '') == 'slot b receives episodes again'
    assert slot.is_healthy


def leaves(rig: RoutingRig, slot: str, after_s: float) -> bool:
    return rig.slots[slot].conditions(rig.now_ns + int(after_s * SECOND)).leaving


def test_running_episodes_leave_at_their_end_or_now(rig):
    rig.command(R.DRAIN, 'b', 'maintenance')
    assert [leaves(rig, 'b', after_s) for after_s in (0, 59, 60)] == [False, False, True]
    text = rig.command(R.DRAIN, 'b', 'smoke', at_once=True)
    assert 'running ones leave with their next request' in text
    assert leaves(rig, 'b', 0)
    rig.command(R.RESTORE, 'b', '')
    assert not leaves(rig, 'b', 1000)
    with pytest.raises(SlotCommandRejected, match='now is for DRAIN and CANARY_ROLLBACK'):
        rig.command(R.RESTORE, 'b', '', at_once=True)


def test_drain_of_the_last_slot_says_that_robots_are_refused(rig):
    assert 'refused' not in rig.command(R.DRAIN, 'b', '')
    text = rig.command(R.DRAIN, 'a', '')
    assert 'no other slot is eligible' in text
    assert 'no reason given' in rig.slots['a'].text


def test_restore_says_what_still_keeps_episodes_away(rig):
    failing(rig, 'b')
    rig.away('/b1')
    text = rig.command(R.RESTORE, 'b', 'try it')
    assert text.startswith('slot b reset; still not eligible: ')
    assert '/b1: server unavailable' in text


def test_restore_brings_back_replicas_too(rig):
    replica = rig.replicas['/a1']
    replica.health.mark_unhealthy('timeout', rig.now_ns)
    assert not replica.is_ready
    rig.command(R.RESTORE, 'a', '')
    assert replica.is_ready


def test_probe_makes_a_trial_due_now(rig):
    failing(rig, 'b')
    slot = rig.slots['b']
    assert not slot.health.is_probe_due(rig.now_ns)
    assert 'probing slot b' in rig.command(R.PROBE, 'b', '')
    assert slot.health.is_probe_due(rig.now_ns)


def test_probe_tries_a_replica_of_a_slot_that_is_well(rig):
    replica = rig.replicas['/a2']
    replica.health.mark_unhealthy('timeout', rig.now_ns)
    rig.command(R.PROBE, 'a', '')
    assert replica.health.is_probe_due(rig.now_ns)


def test_probe_has_nothing_to_try_where_all_is_well_or_an_operator_has_drained(rig):
    with pytest.raises(SlotCommandRejected, match='nothing to probe in slot a: it is healthy'):
        rig.command(R.PROBE, 'a', '')
    rig.command(R.DRAIN, 'b', 'mine')
    with pytest.raises(
        SlotCommandRejected, match='nothing to probe in slot b: drained by an operator: mine'
    ):
        rig.command(R.PROBE, 'b', '')
    assert not rig.slots['b'].health.is_probe_due(rig.now_ns)


@pytest.mark.parametrize('command', [R.DRAIN, R.RESTORE, R.PROBE, R.LIFT_VERDICT])
@pytest.mark.parametrize('name', ['', 'c', 'A', 'prod'])
def test_a_slot_that_is_not_there_is_refused_with_those_that_are(rig, command, name):
    with pytest.raises(SlotCommandRejected, match=rf"unknown slot '{name}'; allowed: a, b"):
        rig.command(command, name, '')
    assert overall_health(rig.slots) == 'healthy'


@pytest.mark.parametrize('command', [0, 15, 255])
def test_an_unknown_command_is_refused_with_those_that_are_known(rig, command):
    known = ', '.join(str(number) for number in range(1, 15))
    with pytest.raises(SlotCommandRejected, match=f'unknown command {command}; allowed: {known} '):
        rig.command(command, 'a', '')


CANARY = (R.CANARY_PAUSE, R.CANARY_RESUME, R.CANARY_PROMOTE, R.CANARY_ROLLBACK)


@pytest.mark.parametrize('command', CANARY)
def test_without_a_plan_there_is_no_canary_to_talk_to(rig, command):
    with pytest.raises(SlotCommandRejected, match=r'set the parameter canary\.plan'):
        rig.command(command, '', '')
    assert not rig.splits


@pytest.mark.parametrize('command', CANARY)
def test_the_canary_is_not_a_slots(canary, command):
    with pytest.raises(SlotCommandRejected, match='must be empty for commands of the rollout'):
        canary.command(command, 'b', '')


def test_the_canary_is_paused_resumed_promoted_and_rolled_back(canary):
    assert canary.splits == [95]
    assert 'wait' in canary.command(R.CANARY_PAUSE, '', 'wait')
    assert canary.command(R.CANARY_RESUME, '', 'go')
    assert canary.command(R.CANARY_PROMOTE, '', 'good')
    assert canary.splits == [95, 0]
    assert canary.command(R.CANARY_ROLLBACK, '', 'it was not')
    assert canary.splits == [95, 0, 100]
    with pytest.raises(SlotCommandRejected, match='it was not'):
        canary.command(R.CANARY_PAUSE, '', '')


@pytest.mark.parametrize('step', ['1', '-1', 'x', '0 '])
def test_a_promotion_of_another_step_is_refused(canary, step):
    with pytest.raises(SlotCommandRejected, match=f'for CanaryState.step {step}, .* is at 0: run'):
        canary.command(R.CANARY_PROMOTE, '', 'good', plan=(step,))
    assert canary.splits == [95]


def test_two_operators_who_promote_the_same_step_promote_once(canary):
    canary.command(R.CANARY_PROMOTE, '', 'good', plan=('0',))
    with pytest.raises(SlotCommandRejected, match='and the rollout is at 1: promoted'):
        canary.command(R.CANARY_PROMOTE, '', 'good', plan=('0',))
    assert canary.splits == [95, 0]


def test_a_verdict_stays_until_a_person_lifts_it(canary):
    canary.command(R.CANARY_ROLLBACK, '', 'arm hit the table')
    slot = canary.slots['b']
    assert 'arm hit the table' in slot.text
    # to end a drain is not to lift a verdict
    text = canary.command(R.RESTORE, 'b', '')
    assert text.startswith('slot b reset; still not eligible: rolled back')
    lifted = canary.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    assert lifted == 'the verdict on act@b is lifted; slot b may receive episodes'
    assert slot.is_healthy
    with pytest.raises(SlotCommandRejected, match='no verdict bars slot b'):
        canary.command(R.LIFT_VERDICT, 'b', '')


def test_to_resume_a_canary_that_was_rolled_back_lifts_its_verdict(canary):
    canary.command(R.CANARY_ROLLBACK, '', 'arm hit the table')
    canary.core.update_canary()
    assert not canary.slots['b'].is_healthy
    canary.command(R.CANARY_RESUME, '', 'try again')
    canary.core.update_canary()
    assert canary.slots['b'].is_healthy
    # what an operator has set since the rollback ends with it
    assert canary.splits == [95, 100, 100, 95]


def test_a_reason_may_have_many_lines(canary):
    text = canary.command(R.CANARY_PAUSE, '', 'line\nline ' * 200)
    assert text.startswith('paused: by an operator: line line')
    assert '\n' not in text
