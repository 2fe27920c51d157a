# SPDX-License-Identifier: Apache-2.0
"""Split, start, stop and finish by an operator: what they change, and that they carry a name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.router.router_core_rig import RoutingRig, TWO_SLOTS

from lerobot_serve.router.api.slot_commands import NAMES, SlotCommandRejected
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.router.monitoring.reports import slot_state
from lerobot_serve.router.storage.decisions import UNKNOWN_AUTHOR
from lerobot_serve_interfaces.srv import ControlSlot

R = ControlSlot.Request
PLAN = ('25', '100')
BY = 'kim@lab: faster'


class Recorder:
    """Notes what the trace gets."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, object, str]] = []
        self.commands: list[tuple[str, str, str, str]] = []
        self.events: list[tuple[str, str]] = []

    def changed_parameters(self, old, new, by):
        for name in ('split_percent', 'canary_plan'):
            if getattr(old, name) != getattr(new, name):
                self.changes.append((name, getattr(new, name), by))

    def command(self, name, slot, by, text):
        self.commands.append((name, slot, by, text))

    def canary(self, event, share_percent):
        self.events.append((event.what, event.why))


@pytest.fixture
def rig(make_router):
    built = make_router()
    built.core.recorder = Recorder()
    return built


def run(rig: RoutingRig, command: int, **values: object) -> str:
    text = rig.command(command, '', BY, **values)
    rig.core.update_canary()
    return text


def phase(rig: RoutingRig) -> CanaryPhase:
    return rig.core.canary.canary.state


def test_each_command_has_a_name():
    wanted = {
        value for name in dir(R) if name.isupper() and type(value := getattr(R, name)) is int
    }
    assert set(NAMES) == wanted


def test_a_split_has_an_author(rig):
    assert run(rig, R.SET_SPLIT, split_percent=90) == '90 % of new episodes to slot a'
    assert rig.splits == [90]
    assert rig.core.recorder.commands == [
        ('split', '', BY, '90 % of new episodes to slot a'),
    ]


def test_a_rollout_is_started_for_the_policy_of_slot_b_by_an_operator(rig):
    assert 'waiting' in run(rig, R.CANARY_START, plan=PLAN)
    assert rig.core.recorder.changes == [('canary_plan', PLAN, BY)]
    assert phase(rig) is CanaryPhase.RUNNING
    assert rig.core.canary.canary.record.planned_policy == 'act@b'
    (event, why), *_ = rig.core.recorder.events
    # nothing was counted before
    assert event == 'planned' and why.startswith('new plan') and why.endswith(f'; by: {BY}')
    stored = rig.core.writer.decisions['parameter', 'canary.plan']
    assert stored['by'] == f'by {BY}'


def test_the_same_plan_is_started_for_another_policy(rig):
    run(rig, R.CANARY_START, plan=PLAN)
    rig.hear('/b1', policy='better@3')
    rig.core.update_canary()
    assert phase(rig) is CanaryPhase.WAITING
    assert 'the plan is for act@b' in rig.core.canary.canary.text
    run(rig, R.CANARY_START, plan=PLAN)
    assert phase(rig) is CanaryPhase.RUNNING
    assert rig.core.canary.canary.record.planned_policy == 'better@3'


def test_a_parameter_by_hand_has_no_author(rig):
    rig.core.change_parameters(replace(rig.core.parameters, canary_plan=PLAN))
    rig.core.update_canary()
    assert rig.core.recorder.changes == [('canary_plan', PLAN, UNKNOWN_AUTHOR)]
    assert any('; by: unknown, by parameter' in why for _, why in rig.core.recorder.events)


def test_stop_and_finish_remove_the_plan_and_then_set_the_split(rig):
    run(rig, R.CANARY_START, plan=PLAN)
    rig.splits.clear()
    run(rig, R.CANARY_STOP, split_percent=100)
    assert phase(rig) is CanaryPhase.OFF
    assert rig.splits == [100]
    assert rig.core.parameters.canary_plan == ()
    assert ('stopped', f'the plan was removed; by: {BY}') in rig.core.recorder.events


@pytest.mark.parametrize('command', [R.CANARY_STOP, R.CANARY_FINISH])
def test_without_a_split_slot_a_gets_all(rig, command):
    run(rig, R.CANARY_START, plan=PLAN)
    if command == R.CANARY_FINISH:
        rig.slots['a'].policy = 'act@b'
    rig.splits.clear()
    # 0, as in a request in which it is not set, would give all robots the candidate
    run(rig, command)
    assert rig.splits == [100]
    run(rig, R.SET_SPLIT, split_percent=0)
    assert rig.splits == [100, 0]


def test_finish_is_for_a_champion_that_is_the_promoted_policy(rig):
    run(rig, R.CANARY_START, plan=PLAN)
    with pytest.raises(SlotCommandRejected, match='slot a serves act@a, not the promoted act@b'):
        run(rig, R.CANARY_FINISH, split_percent=100)
    assert rig.core.parameters.canary_plan == PLAN
    rig.slots['a'].policy = 'act@b'
    run(rig, R.CANARY_FINISH, split_percent=100)
    assert ('finished', f'slot a serves act@b; by: {BY}') in rig.core.recorder.events


@pytest.mark.parametrize('command', [R.CANARY_STOP, R.CANARY_FINISH])
def test_a_stop_with_a_split_that_is_refused_keeps_the_plan(rig, command):
    run(rig, R.CANARY_START, plan=PLAN)
    if command == R.CANARY_FINISH:
        rig.slots['a'].policy = 'act@b'
    rig.away('/a1', '/a2')
    before = rig.core.parameters, rig.core.canary.canary.history
    rig.core.recorder.commands.clear()
    rig.splits.clear()
    with pytest.raises(SlotCommandRejected, match='slot a would receive 100 %'):
        rig.command(command, '', BY, split_percent=100)
    assert (rig.core.parameters, rig.core.canary.canary.history) == before
    assert (rig.splits, rig.core.recorder.commands) == ([], [])
    assert phase(rig) is not CanaryPhase.OFF


REFUSED = {
    'a plan without steps': ({'plan': ()}, lambda rig: None, 'plan must have steps'),
    'a plan that falls': ({'plan': ('50', '5')}, lambda rig: None, 'must rise'),
    'one that runs': ({'plan': PLAN}, lambda rig: run(rig, R.CANARY_START, plan=PLAN), 'begun'),
    'no policy': ({'plan': PLAN}, lambda rig: setattr(rig.slots['b'], 'policy', ''), 'no policy'),
    'the same policy': (
        {'plan': PLAN},
        lambda rig: setattr(rig.slots['b'], 'policy', 'act@a'),
        'both slots serve act@a',
    ),
}


@pytest.mark.parametrize('case', REFUSED)
def test_a_start_that_makes_no_sense_changes_nothing(rig, case):
    values, prepare, text = REFUSED[case]
    prepare(rig)
    before = rig.core.parameters, phase(rig)
    rig.core.recorder.commands.clear()
    with pytest.raises(SlotCommandRejected, match=text):
        run(rig, R.CANARY_START, **values)
    assert (rig.core.parameters, phase(rig)) == before
    assert rig.core.recorder.commands == []


@pytest.mark.parametrize(
    ('command', 'values', 'text'),
    [
        (R.SET_SPLIT, {'split_percent': 101}, r'must be in \[0, 100\], got 101'),
        (R.CANARY_STOP, {'split_percent': 255}, 'got 255'),
    ],
)
def test_a_split_that_is_none_is_refused(rig, command, values, text):
    with pytest.raises(SlotCommandRejected, match=text):
        run(rig, command, **values)
    assert rig.splits == []


def test_a_canary_sets_the_split_alone(rig):
    run(rig, R.CANARY_START, plan=PLAN)
    rig.splits.clear()
    with pytest.raises(SlotCommandRejected, match='the canary sets it'):
        run(rig, R.SET_SPLIT, split_percent=10)
    assert rig.splits == []


def test_what_is_done_to_a_robot_is_recorded_and_changes_nothing(rig):
    before = rig.core.parameters, rig.core.canary.canary.history
    assert run(rig, R.NOTE) == 'recorded'
    assert rig.core.recorder.commands == [('note', '', BY, 'recorded')]
    assert (rig.core.parameters, rig.core.canary.canary.history) == before


def test_one_slot_has_no_split(make_router):
    rig = make_router(slot_prod=('/p1',))
    with pytest.raises(SlotCommandRejected, match='one slot'):
        rig.command(R.SET_SPLIT, '', BY, split_percent=10)


def test_a_policy_begins_without_its_shadow_by_an_operator_and_stays_so(make_router):
    given = {**TWO_SLOTS, 'shadow_server': '/shadow', 'shadow_minimum_episodes': 5}
    rig = make_router(**given)
    rig.core.recorder = Recorder()
    rig.core.update_canary()
    assert '0 of 5 episodes' in rig.slots['b'].text
    assert run(rig, R.SKIP_SHADOW) == 'act@b may begin without its shadow requirements'
    assert rig.slots['b'].text == ''
    ((name, _, by, _),) = rig.core.recorder.commands
    assert (name, by) == ('skip shadow', BY)
    # another policy has its own requirements
    assert '0 of 5 episodes' in rig.core.unmet_requirements('act@c')
    rig.close()

    again = make_router(**given)
    again.core.update_canary()
    assert again.slots['b'].text == ''
    assert again.core.qualification.of('act@b').waiver == BY
    # an operator sees it in the state of the slot
    state = slot_state(again.core.table, again.slots['b'], 0)
    assert state.text == f'shadow requirements waived (0 of 5 episodes) by {BY}'


def test_no_shadow_is_skipped_for_a_policy_that_is_not_known(rig):
    rig.slots['b'].policy = ''
    with pytest.raises(SlotCommandRejected, match='slot b serves no policy yet'):
        run(rig, R.SKIP_SHADOW)


def test_no_rollout_begins_where_both_slots_have_the_same_weights(rig):
    """A verdict would bar both."""
    for server in ('/a1', '/a2'):
        rig.hear(server, policy='renamed@b')
    with pytest.raises(SlotCommandRejected, match='both slots serve act@b'):
        run(rig, R.CANARY_START, plan=PLAN)
    # with a plan of the parameters it waits
    rig.core.change_parameters(replace(rig.core.parameters, canary_plan=PLAN))
    rig.core.update_canary()
    assert phase(rig) is CanaryPhase.WAITING
    assert 'both slots serve act@b' in rig.core.canary.canary.text
