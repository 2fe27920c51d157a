# SPDX-License-Identifier: Apache-2.0
"""What people and the canary decided holds in the router that starts next."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.router.restarting import PLAN, Routers
from support.router.router_core_rig import RoutingRig

from lerobot_serve.router.api.slot_commands import SlotCommandRejected
from lerobot_serve.router.placement.eligibility import PolicyVerdict
from lerobot_serve.router.placement.episode_placement import NoSlotAvailable
from lerobot_serve.router.replicas.slot import NO_VERDICT
from lerobot_serve.router.storage.sqlite_store import FILE
from lerobot_serve.router.storage.store import StoreUnwritable
from lerobot_serve.trace.format.records import RecordIds
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
NUMBERS = count()


@pytest.fixture
def routers(tmp_path):
    made = Routers(tmp_path / 'state')
    yield made
    made.rig.close()


def slot_of(rig: RoutingRig) -> set[str]:
    """Return the slots in which new episodes begin."""
    found = set()
    for _ in range(60):
        try:
            found.add(
                rig.core.place_goal(RecordIds('r', 1, 1, f'episode-{next(NUMBERS)}'))[0].slot
            )
        except NoSlotAvailable:
            found.add('none')
    return found


def test_a_split_that_was_set_live_holds_and_says_where_it_comes_from(routers):
    routers.start(split_percent=50)
    routers.set_live(split_percent=100)
    rig = routers.start(split_percent=50)
    assert rig.core.parameters.split_percent == 100
    assert slot_of(rig) == {'a'}
    (line,) = rig.told
    assert line == 'split_percent is 100, set by hand before; the file says 50'


def test_what_the_file_says_again_ends_it(routers):
    routers.start(split_percent=50)
    routers.set_live(split_percent=100)
    routers.set_live(split_percent=50)
    rig = routers.start(split_percent=50)
    assert (rig.core.parameters.split_percent, rig.told) == (50, [])


def test_a_file_that_was_changed_since_is_what_was_said_last(routers):
    routers.start(split_percent=50)
    routers.set_live(split_percent=100)
    rig = routers.start(split_percent=70)
    assert rig.core.parameters.split_percent == 70
    (line,) = rig.told
    assert line == (
        'split_percent is 70, the value in the file; the restored value 100, set by hand '
        'before, is discarded: the file changed from 50 since'
    )
    assert routers.start(split_percent=70).told == []


def test_a_value_that_is_no_longer_allowed_is_dropped_with_the_reason(routers):
    routers.start()
    routers.set_live(canary_plan=PLAN)
    routers.rig.core.writer.enqueue(
        {('parameter', 'split_percent'): {'value': 400, 'file': 50, 'when': 'x', 'by': 'by hand'}}
    )
    rig = routers.start()
    assert rig.core.parameters.split_percent == 50
    assert any('is discarded: split_percent must be in [0, 100], got 400' in t for t in rig.told)


def test_a_canary_that_was_begun_live_keeps_its_verdict(routers):
    """R2: the plan was given with `ros2 param set`, and the policy was rolled back."""
    rig = routers.start()
    routers.roll_back()
    rig = routers.start()
    assert rig.core.parameters.canary_plan == PLAN
    routers.poll()
    assert slot_of(rig) == {'a'}
    assert any('act@b is barred' in t and 'arm hit the table' in t for t in rig.told)
    # and without its plan, too
    routers.set_live(canary_plan=())
    rig = routers.start()
    routers.poll()
    assert rig.core.parameters.canary_plan == ()
    assert slot_of(rig) == {'a'}
    rig.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    assert slot_of(routers.start()) == {'a', 'b'}


def test_a_rolled_back_policy_drives_in_no_slot_and_another_one_does(routers):
    rig = routers.start()
    routers.roll_back()
    rig = routers.start(failover_slots='both')
    rig.away('/a1', '/a2')
    assert slot_of(rig) == {'none'}
    rig.hear('/b1', policy='better@3')
    assert slot_of(rig) == {'b'}
    # the same policy in the other slot
    for server in ('/a1', '/a2'):
        rig.hear(server, policy='act@b')
    rig.slots['a'].policy = 'act@b'
    assert slot_of(rig) == {'b'}


def test_a_slot_whose_policy_is_not_known_yet_lifts_no_verdict_on_a_policy(routers):
    rig = routers.start()
    routers.roll_back()
    routers.set_live(canary_plan=())
    rig = routers.start(heard=False)
    with pytest.raises(SlotCommandRejected, match='start its policy servers, then retry'):
        rig.command(R.LIFT_VERDICT, 'b', 'which one?')
    # another plan is rolled back, and nobody knows of which policy
    routers.set_live(canary_plan=PLAN)
    rig.command(R.CANARY_ROLLBACK, '', 'not today')
    rig = routers.start(heard=False)
    text = rig.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    assert text.startswith('the verdict on slot:b is lifted; slot b is still not eligible: /b1')
    for server in rig.replicas:
        rig.hear(server)
    routers.poll()
    assert slot_of(rig) == {'a'}
    assert rig.slots['b'].text.endswith('arm hit the table')
    rig.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    assert slot_of(rig) == {'a', 'b'}


def test_to_resume_a_rollout_lifts_no_verdict_on_what_the_slot_serves_meanwhile(routers):
    rig = routers.start()
    rig.core.decisions.bar(rig.slots['b'], 'other@c', 'it fell', at_once=True)
    routers.roll_back()
    # the rollout has not seen it yet
    rig.hear('/b1', policy='other@c')
    rig.command(R.CANARY_RESUME, '', 'it was the gripper')
    routers.poll()
    assert slot_of(rig) == {'a'}
    assert rig.slots['b'].text.endswith('it fell')
    rig.hear('/b1')
    assert slot_of(rig) == {'a', 'b'}


def test_a_drain_by_hand_holds(routers):
    rig = routers.start()
    rig.command(R.DRAIN, 'b', 'maintenance')
    rig = routers.start()
    assert slot_of(rig) == {'a'}
    assert rig.told == ['slot b is drained: maintenance; RESTORE ends that']
    rig.command(R.RESTORE, 'b', '')
    assert slot_of(routers.start()) == {'a', 'b'}


def test_after_a_promotion_the_new_champion_stays(routers):
    """R8: with `split_percent: 100` in the file the old champion came back."""
    rig = routers.start(split_percent=100)
    routers.set_live(canary_plan=PLAN)
    routers.poll()
    rig.command(R.CANARY_PROMOTE, '', 'seen enough')
    assert rig.splits[-1] == 0
    # as the node does it, within the canary's decision
    with rig.core.decisions.canary_transaction():
        rig.core.change_parameters(replace(rig.core.parameters, split_percent=0))
    rig = routers.start(split_percent=100)
    # a verdict of its own, which does not go with the plan
    assert rig.core.decisions.verdicts['act@b'].verdict is PolicyVerdict.PROMOTED
    routers.poll()
    assert slot_of(rig) == {'b'}
    assert 'split_percent is 0, set by the canary before; the file says 100' in rig.told


def test_a_split_of_the_operator_after_a_promotion_is_not_undone(routers):
    rig = routers.start(split_percent=50)
    routers.set_live(canary_plan=PLAN)
    routers.poll()
    rig.command(R.CANARY_PROMOTE, '', 'seen enough')
    routers.set_live(split_percent=100)
    rig = routers.start(split_percent=50)
    routers.poll()
    assert rig.splits == []
    assert slot_of(rig) == {'a'}


def test_damage_bars_the_candidate_until_a_person_lifts_it(routers):
    rig = routers.start()
    routers.roll_back()
    rig.core.writer.flush()
    file = routers.folder / FILE
    rig.close()
    file.write_bytes(file.read_bytes().replace(b'rolled_back', b'rolled_baxk'))
    rig = routers.start()
    routers.poll()
    assert slot_of(rig) == {'a'}
    assert any(text.startswith('state store damaged: ') for text in rig.told)
    rig.hear('/b1', policy='better@3')
    assert slot_of(rig) == {'a'}, 'whatever its policy'
    rig.command(R.LIFT_VERDICT, 'b', 'looked at it')
    routers.poll()
    assert slot_of(rig) == {'a', 'b'}
    rig = routers.start()
    assert slot_of(rig) == {'a'}, 'the policy whose verdict was damaged is barred on its own'
    rig.hear('/b1', policy='better@3')
    rig.slots['b'].policy = 'better@3'
    assert slot_of(rig) == {'a', 'b'}


def test_with_a_full_disk_a_rollback_acts_and_nothing_is_allowed_more(routers, monkeypatch):
    rig = routers.start()
    routers.set_live(canary_plan=PLAN)
    routers.poll()
    store = rig.core.writer.store
    monkeypatch.setattr(
        store, 'write', lambda batch: (_ for _ in ()).throw(StoreUnwritable('full'))
    )
    monkeypatch.setattr(store, 'failure', 'full')
    text = rig.command(R.CANARY_ROLLBACK, '', 'arm hit the table')
    assert 'NOT DURABLE' in text
    assert slot_of(rig) == {'a'}
    assert any(told.startswith('not durable') for told in rig.told)
    text = rig.command(R.DRAIN, 'b', 'too')
    assert 'NOT DURABLE' in text
    for command in (R.RESTORE, R.LIFT_VERDICT):
        with pytest.raises(
            SlotCommandRejected, match=r'stays.*free disk space or repair the disk'
        ):
            rig.command(command, 'b', '')
    with pytest.raises(SlotCommandRejected, match='the verdict on slot b stays'):
        rig.command(R.CANARY_RESUME, '', '')
    assert slot_of(rig) == {'a'}
    # there is room again: what was decided becomes durable by itself
    monkeypatch.undo()
    store.failure = ''
    rig.core.writer.flush()
    rig = routers.start()
    assert slot_of(rig) == {'a'}
    assert rig.slots['b'].drain and rig.slots['b'].verdict_record.text


# one verdict for the same weights, whatever their name


def test_a_verdict_holds_for_the_same_weights_under_another_name(routers):
    rig = routers.start()
    routers.roll_back()
    assert ('verdict', 'act@b') in rig.core.writer.decisions, 'as older routers read it'
    rig.hear('/b1', policy='renamed@b')
    routers.poll()
    assert slot_of(rig) == {'a'}
    # also in the router that starts next
    rig = routers.start()
    rig.hear('/b1', policy='renamed@b')
    assert slot_of(rig) == {'a'}
    assert rig.slots['b'].verdict_record.text.endswith('arm hit the table')
    assert any(text.startswith('act@b is barred') for text in rig.told)
    text = rig.command(R.LIFT_VERDICT, 'b', 'it was the gripper')
    assert 'act@b' in text
    assert not [key for key in rig.core.writer.decisions if key[0] == 'verdict']
    assert slot_of(rig) == {'a', 'b'}
    rig = routers.start()
    assert slot_of(rig) == {'a', 'b'}


@pytest.mark.parametrize('verdicts', [('promoted', 'rolled_back'), ('rolled_back', 'promoted')])
def test_of_two_stored_verdicts_on_the_same_weights_the_one_that_bars_holds(routers, verdicts):
    rig = routers.start()
    decisions = rig.core.decisions
    rows = {
        ('verdict', f'{name}@b'): {'verdict': verdict, 'text': verdict, 'now': True, 'when': ''}
        for name, verdict in zip(('act', 'other'), verdicts, strict=True)
    }
    rig.core.writer.enqueue(rows)
    rig = routers.start()
    assert slot_of(rig) == {'a'}
    # another router of a shared state takes them back, one after the other
    decisions = rig.core.decisions
    names = [name for _, name in rows]
    for name in sorted(names, key=lambda name: rows['verdict', name]['verdict']):
        rig.core.writer.learn(('verdict', name), None, 1)
        decisions.adopt(('verdict', name), None, rig.slots)
        known = decisions.verdicts.get('act@b', NO_VERDICT)
        left = [each for key, each in rig.core.writer.decisions.items() if key in rows]
        assert known.verdict.value == (left[0]['verdict'] if left else NO_VERDICT.verdict.value)
    assert slot_of(rig) == {'a', 'b'}


def test_a_policy_without_a_digest_shares_no_verdict(routers):
    rig = routers.start()
    rig.core.decisions.bar(rig.slots['b'], 'first@', 'it hit the table', at_once=True)
    rig.core.decisions.bar(rig.slots['b'], 'plain', 'it hit the table', at_once=True)
    for policy, begins in (('first@', {'a'}), ('second@', {'a', 'b'}), ('plain', {'a'})):
        rig.hear('/b1', policy=policy)
        assert slot_of(rig) == begins, policy
