# SPDX-License-Identifier: Apache-2.0
"""Commands of the page: what is one, and what each would do by the tables of the verbs."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.operator_states import (
    canary_of,
    changed,
    robot_of,
    router_of,
    SLOT_NAMES,
    slot_of,
)

from lerobot_serve.errors import UserError
from lerobot_serve.router.canary.plan import CanaryPlan, parse_plan
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.dashboard.command_runner import FreshFleet
from lerobot_serve.tools.dashboard.planned_commands import (
    BadRequest,
    command_request,
    Planned,
    planned,
    VERBS,
)
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.commands import rollout_rule, slot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.rollout.rollouts import DEFAULT_PLAN
from lerobot_serve.tools.operate.rollout.steering import slot_steering_rule
from lerobot_serve.tools.operate.rule import changed_text, Effect, SlotVerb, Verb

ROUTER = '/policy_router'
PLAN = parse_plan(['25', '100'])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
WHOLE = {'target': ROUTER, 'slot': 'b', 'percent': 80, 'outcome': 'success'}


class Fleet:
    """One router and one robot."""

    def __init__(self, router: RouterView, *, paused: bool = False) -> None:
        self._router, self._paused = router, paused

    def router(self, node: str) -> RouterView:
        return self._router

    def plan(self, router: str) -> CanaryPlan | None:
        return PLAN

    def robot(self, node: str) -> RobotView:
        return robot_of('/robot_7/edge_controller', paused=self._paused)

    def robots(self) -> list[RobotView]:
        return [self.robot('')]

    def router_of_episode(self, episode_id: str) -> str:
        return ROUTER


def router(phase: CanaryPhase = CanaryPhase.OFF, state: str = 'HEALTHY') -> RouterView:
    slots = (slot_of('a', policy='v1@1'), slot_of('b', policy='v2@2', state=state))
    canary = canary_of(phase, candidate_policy='v2@2', text='why', step_count=3, share_percent=25)
    return router_of(ROUTER, split_percent=75, slots=slots, canary=canary)


@pytest.mark.parametrize('verb', VERBS)
def test_each_verb_is_a_command_and_needs_its_target(verb):
    assert command_request({'verb': verb, **WHOLE}).confirm is None
    without = {key: value for key, value in WHOLE.items() if key != 'target'}
    with pytest.raises(BadRequest, match='needs target'):
        command_request({'verb': verb, **without})


@pytest.mark.parametrize(
    ('change', 'complaint'),
    [
        ({'verb': 'robot dance'}, 'verb must be one of'),
        ({'verb': ''}, 'verb must be one of'),
        ({'percent': 101}, 'PERCENT must be in'),
        ({'percent': -1}, 'PERCENT must be in'),
        ({'percent': True}, 'percent must be a whole number'),
        ({'percent': 80.5}, 'percent must be a whole number'),
        ({'percent': None}, 'needs percent'),
        ({'target': 'x' * 300}, 'target must be a text of at most 256'),
        ({'reason': 'x' * 600}, 'reason must be a text of at most 512'),
        ({'confirm': 'x' * 5000}, 'confirm must be a text of at most 4096'),
        ({'at_once': True}, 'at_once is of'),
        ({'plan': DEFAULT_PLAN}, 'plan is of rollout start'),
        ({'policy': 'x'}, 'policy is of rollout start'),
        ({'router': 'x'}, "unknown field 'router'"),
        ({'target': 7}, 'target must be a text'),
    ],
)
def test_what_is_no_command_is_refused_with_the_field(change, complaint):
    with pytest.raises(UserError, match=complaint):
        command_request({'verb': 'split', **WHOLE, **change})


@given(JSON)
def test_whatever_arrives_is_a_command_or_refused(data):
    with pytest.raises(BadRequest):
        command_request(data)


@pytest.mark.parametrize('phase', CanaryPhase)
@pytest.mark.parametrize(
    'verb', [Verb.PAUSE, Verb.RESUME, Verb.PROMOTE, Verb.ABORT, Verb.UNDO, Verb.STOP]
)
def test_a_rollout_verb_has_the_rule_of_the_command_line(verb, phase):
    now = router(phase)
    request = command_request({'verb': f'rollout {verb.value}', 'target': ROUTER})
    assert planned(request, Fleet(now)).rule == rollout_rule(verb, now.canary, PLAN)


@pytest.mark.parametrize('state', SLOT_NAMES)
@pytest.mark.parametrize('verb', [SlotVerb.DRAIN, SlotVerb.RESTORE])
def test_a_slot_verb_has_the_rule_of_the_command_line(verb, state):
    now = router(state=state)
    request = command_request({'verb': verb.value, 'target': ROUTER, 'slot': 'b'})
    found = planned(request, Fleet(now))
    same = slot_steering_rule(verb, now.state.slots[1], now, lambda: PLAN, at_once=False)
    assert found.rule == same
    assert found.text.startswith(slot_rule(verb, now.state.slots[1]).text)


def test_a_drain_during_a_trial_says_that_it_rolls_back():
    request = command_request({'verb': 'drain', 'target': ROUTER, 'slot': 'b'})
    assert 'is rolled back by it' in planned(request, Fleet(router(CanaryPhase.RUNNING))).text
    assert 'rolled back' not in planned(request, Fleet(router())).text


@pytest.mark.parametrize('phase', CanaryPhase)
@pytest.mark.parametrize('state', ['BARRED', 'HEALTHY'])
def test_a_plan_that_waits_for_a_barred_slot_is_removed_before_the_verdict_is_lifted(phase, state):
    request = command_request({'verb': 'rollout resume', 'target': ROUTER})
    found = planned(request, Fleet(router(phase, state)))
    removes = found.rule.effect is Effect.REFUSE and '`lerobot-serve rollout stop`' in found.text
    assert removes == (phase is CanaryPhase.WAITING and state == 'BARRED')


def test_a_restore_says_what_begins_by_it():
    request = command_request({'verb': 'restore', 'target': ROUTER, 'slot': 'b'})
    waits = planned(request, Fleet(router(CanaryPhase.WAITING, 'DRAINED')))
    assert 'begins at 25 % of new episodes' in waits.text


def test_a_slot_state_of_a_newer_version_is_refused():
    request = command_request({'verb': 'drain', 'target': ROUTER, 'slot': 'b'})
    with pytest.raises(UserError, match='does not know'):
        planned(request, Fleet(router(state='unknown (12)')))


def test_a_split_is_refused_while_a_rollout_sets_it():
    request = command_request({'verb': 'split', 'target': ROUTER, 'percent': 80})
    assert planned(request, Fleet(router())).rule.effect is Effect.DO
    running = planned(request, Fleet(router(CanaryPhase.RUNNING)))
    assert running.rule.effect is Effect.REFUSE and 'rollout sets the split' in running.text
    same = command_request({'verb': 'split', 'target': ROUTER, 'percent': 75})
    assert planned(same, Fleet(router())).rule.effect is Effect.NOTHING


def test_leaving_at_once_is_part_of_what_is_confirmed():
    request = {'verb': 'drain', 'target': ROUTER, 'slot': 'b'}
    text = 'running episodes leave with their next request'
    assert text in planned(command_request({**request, 'at_once': True}), Fleet(router())).text
    assert text not in planned(command_request(request), Fleet(router())).text


def test_a_command_is_done_only_in_the_state_that_was_read():
    def shown(*, paused: bool) -> Planned:
        request = command_request({'verb': 'robot pause', 'target': '/robot_7/edge_controller'})
        return planned(request, Fleet(router(), paused=paused))

    assert changed_text(shown(paused=False).text, shown(paused=False).text) == ''
    refusal = changed_text(shown(paused=False).text, shown(paused=True).text)
    assert 'paused already' in refusal and 'Nothing was changed' in refusal


def test_the_last_state_of_a_silent_robot_is_not_read_again():
    silent = fleet_state.silent(
        robot_of('/robot_7/edge_controller', paused=True), fleet_state.UNHEARD
    )

    class Known(Fleet):
        def robot(self, node: str) -> RobotView:
            return silent

    # a client that is asked for a state fails the test
    assert FreshFleet(cast(Any, None), Known(router())).robot(silent.node) is silent


@pytest.mark.parametrize('phase', CanaryPhase)
@pytest.mark.parametrize('verb', [Verb.START, Verb.FINISH])
def test_a_rollout_begins_and_ends_in_the_phases_of_the_command_line(verb, phase):
    now = router(phase)
    found = planned(
        command_request({'verb': f'rollout {verb.value}', 'target': ROUTER}), Fleet(now)
    )
    table = rollout_rule(verb, now.canary)
    assert (found.rule.effect, found.rule.asks) == (table.effect, table.asks)
    if found.rule.effect is not Effect.DO or verb is Verb.FINISH:
        assert found.text == table.text


def test_a_start_says_policy_and_plan():
    start = {'verb': 'rollout start', 'target': ROUTER}

    def text(**given: str) -> str:
        return planned(command_request({**start, **given}), Fleet(router())).text

    assert text() == 'give v2@2 episodes by the plan 25, 50, 100'
    assert text(policy='v2', plan='10:5, 100') == 'give v2@2 episodes by the plan 10:5, 100'
    assert text(policy='/models/v3').startswith('load /models/v3 into slot b, all episodes to')
    with pytest.raises(UserError, match='v3'):
        text(policy='v3')
    for wrong, complaint in (
        ({'plan': '50,20,100'}, 'plan'),
        ({'plan': ''}, 'must have steps'),
        ({'policy': 'x' * 1025}, 'at most 1024'),
        ({'verb': 'rollout finish', 'plan': '100'}, 'plan is of rollout start'),
    ):
        with pytest.raises(UserError, match=complaint):
            command_request({**start, **wrong})


def test_a_finish_is_one_sentence_while_the_counts_of_its_watch_go_on():
    finish = command_request({'verb': 'rollout finish', 'target': ROUTER})

    def shown(text: str, *, is_watched: bool = True) -> str:
        now = router(CanaryPhase.PROMOTED)
        canary = changed(now.canary, text=text, is_watched=is_watched)
        return planned(finish, Fleet(changed(now, canary=canary))).text

    first = shown('watched for 37 of 500 episodes and 0.167 of 24 h')
    assert first == shown('watched for 38 of 500 episodes and 0.168 of 24 h')
    assert first.endswith('No champion is left to go back to; it is still watched')
    assert shown('nothing is worse', is_watched=False).endswith('to go back to')


def test_a_finish_needs_a_slot_b_that_serves_meanwhile():
    finish = command_request({'verb': 'rollout finish', 'target': ROUTER})
    with pytest.raises(UserError, match='slot b, which must serve meanwhile, is UNAVAILABLE'):
        planned(finish, Fleet(router(CanaryPhase.PROMOTED, 'UNAVAILABLE')))
