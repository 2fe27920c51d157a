# SPDX-License-Identifier: Apache-2.0
"""Every verb in every state: what it does, and that the router allows exactly that."""

from __future__ import annotations

import pytest
from support.tools.operator_states import canary_of, changed, router_of, SLOT_NAMES, slot_of

from lerobot_serve.contract.codec import decode, encode
from lerobot_serve.contract.records import CanaryState
from lerobot_serve.router.canary.plan import parse_plan
from lerobot_serve.router.canary.states import CanaryPhase, CanaryTrigger, TRANSITIONS
from lerobot_serve.tools.operate.commands import (
    OTHER_POLICY_RULES,
    ROBOT_RULES,
    rollout_rule,
    ROLLOUT_RULES,
    slot_rule,
    SLOT_RULES,
)
from lerobot_serve.tools.operate.fleet_state import waits_for_start
from lerobot_serve.tools.operate.rollout.steering import (
    drain_consequence,
    restore_consequence,
    split_refusal,
)
from lerobot_serve.tools.operate.rule import Effect, RobotVerb, Rule, SlotVerb, Verb

DO, NOTHING, REFUSE = Effect.DO, Effect.NOTHING, Effect.REFUSE
PHASES = ('OFF', 'WAITING', 'RUNNING', 'UNDECIDED', 'PAUSED', 'PROMOTED', 'ROLLED_BACK')
EXPECTED = {
    Verb.START: (DO, REFUSE, REFUSE, REFUSE, REFUSE, REFUSE, DO),
    Verb.PAUSE: (REFUSE, REFUSE, DO, DO, NOTHING, REFUSE, REFUSE),
    Verb.RESUME: (REFUSE, NOTHING, NOTHING, NOTHING, DO, NOTHING, DO),
    Verb.PROMOTE: (REFUSE, REFUSE, DO, DO, DO, NOTHING, REFUSE),
    Verb.ABORT: (REFUSE, DO, DO, DO, DO, DO, NOTHING),
    Verb.UNDO: (REFUSE, REFUSE, REFUSE, REFUSE, DO, REFUSE, DO),
    Verb.STOP: (NOTHING, DO, DO, DO, DO, DO, DO),
    Verb.FINISH: (REFUSE, REFUSE, REFUSE, REFUSE, REFUSE, DO, REFUSE),
}
SLOT_EXPECTED = {
    SlotVerb.DRAIN: (DO, NOTHING, DO, DO, DO, DO),
    SlotVerb.LIFT: (REFUSE, REFUSE, REFUSE, REFUSE, DO, REFUSE),
    SlotVerb.RESTORE: (NOTHING, DO, DO, REFUSE, DO, REFUSE),
}
TRIGGERS = {
    'CANARY_PAUSE': CanaryTrigger.PAUSE,
    'CANARY_RESUME': CanaryTrigger.RESUME,
    'CANARY_PROMOTE': CanaryTrigger.FINISH,
    'CANARY_ROLLBACK': CanaryTrigger.ROLL_BACK,
}
STEERING = {
    Verb.PAUSE: CanaryTrigger.PAUSE,
    Verb.RESUME: CanaryTrigger.RESUME,
    Verb.PROMOTE: CanaryTrigger.FINISH,
    Verb.ABORT: CanaryTrigger.ROLL_BACK,
}
# pairs that the operator is asked about, because episodes or a robot move
ASKED = {Verb.START, Verb.PROMOTE, Verb.ABORT, Verb.STOP, Verb.FINISH}
# verbs that change parameters and servers instead of sending a command
PARAMETERS = {Verb.START, Verb.STOP, Verb.FINISH}


def test_the_tables_have_every_verb_in_every_state():
    assert tuple(phase.name for phase in CanaryPhase) == PHASES
    assert set(ROLLOUT_RULES) == {(verb, phase) for verb in Verb for phase in CanaryPhase}
    assert set(SLOT_RULES) == {(verb, state) for verb in SlotVerb for state in SLOT_NAMES}
    assert set(ROBOT_RULES) == {(verb, paused) for verb in RobotVerb for paused in (False, True)}


@pytest.mark.parametrize('verb', Verb)
def test_what_a_verb_does_in_each_state(verb):
    found = tuple(ROLLOUT_RULES[verb, phase].effect for phase in CanaryPhase)
    assert found == EXPECTED[verb]


@pytest.mark.parametrize('verb', SlotVerb)
def test_what_a_slot_verb_does_in_each_state(verb):
    assert tuple(SLOT_RULES[verb, state].effect for state in SLOT_NAMES) == SLOT_EXPECTED[verb]


@pytest.mark.parametrize(('verb', 'phase'), ROLLOUT_RULES)
def test_a_command_is_sent_where_the_router_allows_it(verb, phase):
    rule = ROLLOUT_RULES[verb, phase]
    assert bool(rule.command) == (rule.effect is DO and verb not in PARAMETERS)
    if rule.command:
        assert (phase, TRIGGERS[rule.command]) in TRANSITIONS
        assert TRIGGERS[rule.command] is STEERING.get(verb, CanaryTrigger.RESUME)
        assert set(rule.wanted) <= set(PHASES) and rule.wanted
    elif verb in STEERING:
        assert (phase, STEERING[verb]) not in TRANSITIONS


@pytest.mark.parametrize(('verb', 'phase'), ROLLOUT_RULES)
def test_the_operator_is_asked_when_episodes_move(verb, phase):
    rule = ROLLOUT_RULES[verb, phase]
    lifts_verdict = phase is CanaryPhase.ROLLED_BACK
    assert rule.asks == (rule.effect is DO and (verb in ASKED or lifts_verdict))


@pytest.mark.parametrize(('verb', 'state'), SLOT_RULES)
def test_a_slot_verb_sends_its_own_command(verb, state):
    command = {SlotVerb.LIFT: 'LIFT_VERDICT'}.get(verb, verb.name)
    rule = SLOT_RULES[verb, state]
    assert rule.command == (command if rule.effect is DO else '')
    assert rule.asks == (rule.effect is DO)


def is_complete(rule: Rule) -> bool:
    return bool(rule.text) and '{' not in rule.text


@pytest.mark.parametrize(('verb', 'phase'), ROLLOUT_RULES)
def test_every_sentence_is_complete(verb, phase):
    canary = canary_of(phase, 'v2@1', 'v1@1', text='the text', step_count=3, share_percent=25)
    rule = rollout_rule(verb, canary)
    assert is_complete(rule)
    assert rule.effect is not DO or verb is Verb.START or 'v2@1' in rule.text


@pytest.mark.parametrize(('verb', 'state'), SLOT_RULES)
def test_every_sentence_of_a_slot_is_complete(verb, state):
    rule = slot_rule(verb, slot_of('b', 'v2@1', state, 'the text'))
    assert is_complete(rule) and 'slot b' in rule.text


@pytest.mark.parametrize('verb', Verb)
def test_another_policy_than_that_of_the_plan_may_only_be_started_or_ended(verb):
    text = 'the plan is for v2@1'
    waits = canary_of(CanaryPhase.WAITING, 'v3@1', 'v1@1', text=text, planned_policy='v2@1')
    assert waits_for_start(waits)
    assert set(OTHER_POLICY_RULES) == set(Verb)
    allowed = {Verb.START, Verb.ABORT, Verb.STOP}
    assert (rollout_rule(verb, waits).effect is DO) == (verb in allowed)
    for other in (changed(waits, candidate_policy='v2@1'), changed(waits, planned_policy='')):
        assert rollout_rule(verb, other).effect is EXPECTED[verb][1]
    running = changed(waits, state=CanaryPhase.RUNNING)
    assert rollout_rule(verb, running).effect is EXPECTED[verb][2]


@pytest.mark.parametrize('verb', Verb)
def test_no_verb_acts_in_a_state_of_a_newer_router(verb):
    rule = rollout_rule(verb, canary_of(CanaryPhase(9)))
    assert rule.effect is REFUSE
    assert 'unknown (9)' in rule.text and 'version of the router' in rule.text


@pytest.mark.parametrize('verb', SlotVerb)
def test_no_verb_acts_on_a_slot_in_a_state_of_a_newer_router(verb):
    rule = slot_rule(verb, slot_of('b', state='unknown (12)'))
    assert rule.effect is REFUSE
    assert 'slot b unknown (12)' in rule.text


def test_a_state_of_a_newer_router_is_shown_with_its_number():
    found = decode(CanaryState, encode(canary_of(CanaryPhase(200))))
    assert found.state == CanaryPhase(200)
    assert found.state.word == found.state.name == 'unknown (200)'
    assert 'unknown (200)' in split_refusal(found)


@pytest.mark.parametrize(
    ('step', 'shares', 'text'),
    [
        (0, 3, 'give v2@1 50 % of new episodes (now step 1 of 3, 25 %)'),
        (1, 3, 'give v2@1 100 % of all new episodes, its last step, (now step 2 of 3'),
    ],
)
def test_promote_says_what_share_it_gives(step, shares, text):
    canary = canary_of(
        CanaryPhase.RUNNING, 'v2@1', 'v1@1', step=step, step_count=shares, share_percent=25
    )
    assert text in rollout_rule(Verb.PROMOTE, canary, parse_plan(['25', '50', '100'])).text


ROUTERS = {
    'both serve': (75, 25),
    'all to a': (100, 0),
    'all to b': (0, 100),
}


@pytest.mark.parametrize('at_once', [False, True])
@pytest.mark.parametrize('shares', ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize('slot', ['a', 'b'])
def test_a_drain_says_when_no_slot_is_left(slot, shares, at_once):
    slots = tuple(slot_of(n, share_percent=s) for n, s in zip('ab', shares, strict=True))
    text = drain_consequence(slot, router_of('/r', slots=slots), at_once=at_once)
    is_left = shares['ab'.index(slot) - 1] > 0
    assert ('no other slot has a share: new episodes are refused' in text) == (not is_left)
    assert ('its running episodes leave with their next request' in text) == at_once
    assert bool(text) == (at_once or not is_left)
    assert text[:2] in ('', '; ')


@pytest.mark.parametrize('phase', CanaryPhase)
@pytest.mark.parametrize('slot', ['a', 'b'])
def test_a_drain_of_the_candidate_says_what_it_means_for_its_rollout(slot, phase):
    slots = (slot_of('a', share_percent=75), slot_of('b', share_percent=25))
    router = router_of('/r', slots=slots, canary=canary_of(phase, 'v2@1'))
    text = drain_consequence(slot, router, at_once=False)
    runs = phase.name in ('RUNNING', 'UNDECIDED', 'PAUSED')
    assert ('of v2@1 is rolled back by it' in text) == (slot == 'b' and runs)
    assert ('waits until it is restored' in text) == (slot == 'b' and phase.name == 'WAITING')


@pytest.mark.parametrize('phase', CanaryPhase)
@pytest.mark.parametrize('planned', ['', 'v2@1', 'other@1'])
def test_a_restore_says_that_a_rollout_begins(phase, planned):
    canary = canary_of(phase, 'v2@1', planned_policy=planned)
    text = restore_consequence(canary, parse_plan(['25', '100']))
    begins = phase is CanaryPhase.WAITING and planned != 'other@1'
    assert bool(text) == begins
    assert not begins or 'begins at 25 % of new episodes' in text


def test_the_split_belongs_to_a_rollout_until_it_ends():
    refused = {phase for phase in CanaryPhase if split_refusal(canary_of(phase, text='runs'))}
    assert {phase.name for phase in refused} == {'WAITING', 'RUNNING', 'UNDECIDED', 'PAUSED'}
    assert '(runs)' in split_refusal(canary_of(CanaryPhase.RUNNING, text='runs'))


def test_what_stops_a_robot_is_not_asked_for():
    assert not ROBOT_RULES[RobotVerb.PAUSE, False].asks
    assert ROBOT_RULES[RobotVerb.RESUME, True].asks
    assert ROBOT_RULES[RobotVerb.RESET, False].asks
    assert not ROBOT_RULES[RobotVerb.RESET, True].asks
