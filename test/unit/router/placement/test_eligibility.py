# SPDX-License-Identifier: Apache-2.0
"""
Which slot may answer what: every combination of conditions and paths, against safety predicates
that are written here from the rules for operators and not from the table.
"""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.router.placement.eligibility import (
    check_eligibility,
    choose_slot,
    effective_shares,
    Eligibility,
    PolicyVerdict,
    Reachability,
    SlotConditions,
    SlotUse,
)

FLAGS = (False, True)
ALL = [
    SlotConditions(
        verdict,
        has_share,
        reach,
        takes_failover,
        leaving,
        'a verdict' if verdict in (PolicyVerdict.ROLLED_BACK, PolicyVerdict.DAMAGED) else '',
        'drained' if drained else '',
        'unmet_requirements' if unmet else '',
        'incompatibility' if differs else '',
        '' if reach is Reachability.HEALTHY else 'unreachable',
    )
    for verdict, has_share, reach, takes_failover, leaving, drained, unmet, differs in product(
        PolicyVerdict, FLAGS, Reachability, FLAGS, FLAGS, FLAGS, FLAGS, FLAGS
    )
    # running episodes leave because of a verdict or a drain
    if not leaving or drained or verdict in (PolicyVerdict.ROLLED_BACK, PolicyVerdict.DAMAGED)
]
BRINGS_A_ROBOT = (SlotUse.PLACE, SlotUse.TAKE_OVER, SlotUse.MOVE_IN)
DRIVES = (*BRINGS_A_ROBOT, SlotUse.STAY, SlotUse.FAIL_OVER, SlotUse.HEDGE)


def may(path: SlotUse, slot: SlotConditions) -> bool:
    return check_eligibility(path, slot).grade is not Eligibility.NO


def where(path: SlotUse) -> list[SlotConditions]:
    """Return the conditions under which a slot may be used for it."""
    return [slot for slot in ALL if may(path, slot)]


def test_every_combination_of_every_path_is_looked_at():
    assert len(ALL) > 700
    assert set(SlotUse) == {*DRIVES, SlotUse.PROBE, SlotUse.GET_SHARE}


@pytest.mark.parametrize('path', [*BRINGS_A_ROBOT, SlotUse.GET_SHARE])
def test_a_policy_that_was_rolled_back_gets_no_robot_by_any_path(path):
    for slot in where(path):
        assert slot.verdict not in (PolicyVerdict.ROLLED_BACK, PolicyVerdict.DAMAGED), slot


@pytest.mark.parametrize('path', [*BRINGS_A_ROBOT, SlotUse.GET_SHARE])
def test_what_an_operator_keeps_away_or_a_gate_holds_back_gets_no_robot(path):
    for slot in where(path):
        assert not (slot.drained or slot.unmet_requirements or slot.incompatibility), slot


@pytest.mark.parametrize('path', DRIVES)
def test_no_robot_is_driven_by_a_policy_that_does_not_fit_or_by_no_replica(path):
    for slot in where(path):
        assert not slot.incompatibility and slot.reach is not Reachability.UNREACHABLE, slot


@pytest.mark.parametrize('path', DRIVES)
def test_once_its_episodes_leave_a_slot_drives_no_robot(path):
    for slot in where(path):
        assert not slot.leaving, slot
        assert slot.verdict is not PolicyVerdict.DAMAGED, slot


@pytest.mark.parametrize('path', [SlotUse.TAKE_OVER, SlotUse.MOVE_IN])
def test_more_than_its_share_comes_only_to_what_is_declared_for_it(path):
    for slot in where(path):
        assert slot.takes_failover or (
            slot.has_share and slot.verdict is not PolicyVerdict.ON_TRIAL
        ), slot


def test_a_share_of_nothing_is_no_new_episode():
    assert all(slot.has_share for slot in where(SlotUse.PLACE))


def test_an_episode_keeps_its_slot_while_that_answers_and_nothing_empties_it():
    for slot in ALL:
        stays = not (slot.leaving or slot.incompatibility or slot.verdict is PolicyVerdict.DAMAGED)
        stays &= slot.reach is not Reachability.UNREACHABLE
        for path in (SlotUse.STAY, SlotUse.FAIL_OVER, SlotUse.HEDGE):
            assert may(path, slot) == stays, (path, slot)


def test_no_running_episode_moves_into_a_slot_that_failed_lately():
    assert all(slot.reach is Reachability.HEALTHY for slot in where(SlotUse.MOVE_IN))
    assert all(slot.reach is Reachability.HEALTHY for slot in where(SlotUse.GET_SHARE))


def test_a_probe_drives_no_robot_and_needs_a_replica_alone():
    for slot in ALL:
        assert may(SlotUse.PROBE, slot) == (slot.reach is not Reachability.UNREACHABLE)


def test_what_nothing_speaks_against_is_allowed():
    for path in SlotUse:
        assert check_eligibility(path, SlotConditions()) == (Eligibility.YES, '')
        assert check_eligibility(path, SlotConditions(verdict=PolicyVerdict.PROMOTED)) == (
            Eligibility.YES,
            '',
        )


def test_every_refusal_says_why():
    for path, slot in product(SlotUse, ALL):
        answer = check_eligibility(path, slot)
        assert bool(answer.reason) == (answer.grade is not Eligibility.YES), (path, slot)


def test_more_against_it_never_allows_more():
    """Whatever is added to the conditions, no path becomes open that was closed."""
    worse = {
        'verdict': PolicyVerdict.DAMAGED,
        'drained': 'drained',
        'unmet_requirements': 'unmet_requirements',
        'incompatibility': 'incompatibility',
        'has_share': False,
        'takes_failover': False,
        'leaving': True,
    }
    fields = SlotConditions.__dataclass_fields__
    for path, slot in product(SlotUse, ALL):
        values = {name: getattr(slot, name) for name in fields}
        for name, value in worse.items():
            more = SlotConditions(**{**values, name: value, 'verdict_text': 'a verdict'})
            assert check_eligibility(path, more).grade <= check_eligibility(path, slot).grade, (
                path,
                slot,
                name,
            )


@pytest.mark.parametrize('wanted', ['a', 'b'])
def test_of_two_slots_a_new_episode_goes_only_where_it_may(wanted):
    for a, b in product(ALL[::7], ALL[::11]):
        slots = {'a': a, 'b': b}
        other = 'b' if wanted == 'a' else 'a'
        slot, reason = choose_slot(wanted, slots)
        if slot == wanted:
            assert may(SlotUse.PLACE, slots[wanted])
        elif slot:
            assert may(SlotUse.TAKE_OVER, slots[other]) and reason
        else:
            assert not may(SlotUse.PLACE, slots[wanted]) and not may(
                SlotUse.TAKE_OVER, slots[other]
            )
            assert 'slot a: ' in reason and 'slot b: ' in reason


def test_a_champion_that_is_away_gives_nothing_to_a_candidate_that_was_rolled_back():
    slots = {
        'a': SlotConditions(reach=Reachability.UNREACHABLE, unreachable='/a1: server unavailable'),
        'b': SlotConditions(
            PolicyVerdict.ROLLED_BACK, takes_failover=True, verdict_text='arm hit the table'
        ),
    }
    for wanted in slots:
        slot, reason = choose_slot(wanted, slots)
        assert slot == ''
        assert 'arm hit the table' in reason and 'server unavailable' in reason
    assert effective_shares({'a': 95, 'b': 5}, slots) == {'a': 0, 'b': 0}


def test_shares_that_slots_really_get():
    well, away = SlotConditions(), SlotConditions(reach=Reachability.UNREACHABLE)
    trial = SlotConditions(PolicyVerdict.ON_TRIAL)
    assert effective_shares({'a': 95, 'b': 5}, {'a': well, 'b': trial}) == {'a': 95, 'b': 5}
    assert effective_shares({'a': 95, 'b': 5}, {'a': well, 'b': away}) == {'a': 100, 'b': 0}
    # five of a hundred episodes is what the canary allows, whatever becomes of the champion
    assert effective_shares({'a': 95, 'b': 5}, {'a': away, 'b': trial}) == {'a': 0, 'b': 5}
