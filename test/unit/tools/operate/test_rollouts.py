# SPDX-License-Identifier: Apache-2.0
"""The rollout verbs of several steps: when finish stops, and what a plan may be."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import (
    canary_of,
    changed,
    replica_of,
    robot_of,
    router_of,
    SLOT_NAMES,
    slot_of,
)

from lerobot_serve.errors import UserError, WrongCommandLine
from lerobot_serve.router.canary.states import CanaryPhase
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rollout import rollouts
from lerobot_serve.tools.operate.rollout.rollouts import (
    check_finish,
    check_still_promoted,
    parsed_plan,
)

OLD, NEW, OTHER = 'v1@1', 'v2@2', 'v3@3'
PROMOTED = canary_of(CanaryPhase.PROMOTED, NEW, OLD, 2, 3, 100, 'promoted', planned_policy=NEW)


def router(
    phase: CanaryPhase = CanaryPhase.PROMOTED, state: str = 'HEALTHY', policy: str = NEW
) -> RouterView:
    slots = (
        slot_of('a', OLD, replicas=tuple(replica_of(f'/a{n}', 'READY', '', OLD) for n in '12')),
        slot_of('b', policy, state, 'text of b', 100, replicas=(replica_of('/b', 'READY'),)),
    )
    canary = changed(PROMOTED, state=phase, text=f'{phase.word}: why')
    return router_of('/r', slots=slots, canary=canary)


@pytest.mark.parametrize('policy', [NEW, OTHER, ''])
@pytest.mark.parametrize(('phase', 'state'), product(CanaryPhase, SLOT_NAMES))
def test_finish_goes_on_only_while_the_same_policy_is_promoted_and_serves(phase, state, policy):
    client = LoadingFleet(router(phase, state, policy))
    if (phase, state, policy) == (CanaryPhase.PROMOTED, 'HEALTHY', NEW):
        check_still_promoted(client, router())
        return
    with pytest.raises(UserError) as raised:
        check_still_promoted(client, router())
    text = str(raised.value)
    assert f'the rollout is {phase.name} and slot b {state} now' in text
    assert f'restart the servers of slot a that serve {NEW}' in text


@pytest.mark.parametrize('state', SLOT_NAMES)
def test_finish_begins_only_when_the_other_slot_serves(state):
    if state == 'HEALTHY':
        check_finish(router(state=state))
        return
    with pytest.raises(UserError, match=f'is {state}: text of b. Nothing was changed'):
        check_finish(router(state=state))


@pytest.mark.parametrize('given', ['', ' , ', '100', '50,25,100', '25', 'a', '25,50,101'])
def test_a_plan_that_is_none_is_a_wrong_command_line(given):
    with pytest.raises(WrongCommandLine) as raised:
        parsed_plan(given)
    assert raised.value.exit_status == 2
    assert '--plan' in str(raised.value)


def finish(fleet: LoadingFleet) -> Any:
    return rollouts.finish(fleet.loader, fleet.view, reason='a week without a fault')


def test_finish_loads_each_server_and_then_removes_the_plan_with_a_name():
    fleet = LoadingFleet(router(), NEW)
    result = finish(fleet)
    assert fleet.commands == [('CANARY_FINISH', 'kim@lab: a week without a fault')]
    assert result.text == f'slot a serves {NEW} and gets all new episodes; slot b is free'
    assert f'policy of slot a: {OLD} -> {NEW}' in result.changes


@pytest.mark.parametrize('server', ['/a1', '/a2'])
def test_finish_stops_at_a_rollback_and_says_what_each_server_serves(server):
    fleet = LoadingFleet(router(), NEW)
    back = changed(PROMOTED, state=CanaryPhase.ROLLED_BACK, text='an arm fell')

    def on_loaded(loaded: str) -> None:
        if loaded == server:
            fleet.view = changed(fleet.view, canary=back)

    fleet.on_loaded = on_loaded
    with pytest.raises(PartlyDone, match='ROLLED_BACK') as raised:
        finish(fleet)
    assert fleet.commands == []
    text = str(raised.value)
    assert f'/a1 serves {NEW}' in text
    assert ('/a2 serves v1@1' in text) == (server == '/a1')


@pytest.mark.parametrize(
    ('reply', 'kind'),
    [
        ((False, 'the store is not durable'), PartlyDone),
        (NotReached('/r/control_slot is not available; nothing was sent'), PartlyDone),
        (ResultUnknown('no reply'), ResultUnknown),
    ],
)
def test_a_finish_that_fails_after_the_load_says_what_slot_a_serves(reply, kind):
    fleet = LoadingFleet(router(), NEW, replies={'CANARY_FINISH': reply})
    with pytest.raises(kind) as raised:
        finish(fleet)
    text = str(raised.value)
    assert f'Now /a1 serves {NEW}; /a2 serves {NEW}. Type the same command again' in text
    assert 'Nothing was changed' not in text
    # a second try has nothing to load
    fleet.replies['CANARY_FINISH'] = False, 'the store is not durable'
    with pytest.raises(UserError, match=r'durable\. Nothing was changed$') as raised:
        finish(fleet)
    assert raised.value.exit_status == 1


def start(
    fleet: LoadingFleet, policy: str = '', before: RouterView | None = None, **options: object
) -> Any:
    plan = ('50', '100')
    return rollouts.start(
        fleet.loader, before or fleet.view, policy, plan, reason='seen before', **options
    )


def test_the_shadow_is_skipped_by_name_and_reason_before_the_plan_starts():
    by = 'kim@lab: seen before'
    fleet = LoadingFleet(router(), NEW)
    start(fleet, skips_shadow=True)
    assert fleet.commands == [('SKIP_SHADOW', by), ('CANARY_START', by)]
    fleet = LoadingFleet(router(), NEW)
    start(fleet)
    assert fleet.commands == [('CANARY_START', by)]
    fleet = LoadingFleet(router(), NEW, replies={'SKIP_SHADOW': (False, 'unknown command 14')})
    with pytest.raises(UserError, match=r'refuses: unknown command 14\. No plan was started'):
        start(fleet, skips_shadow=True)
    assert fleet.commands == [('SKIP_SHADOW', by)]


BY_HAND = changed(router(CanaryPhase.OFF), canary=canary_of(), split_percent=50)
STOPPED = '/r has no plan and gives all new episodes to slot a'


def test_a_start_that_ends_after_the_split_was_set_says_so():
    robot = robot_of('/robot_7/edge', slot='b', episode_id='ep_1', server='/r')
    fleet = LoadingFleet(BY_HAND, OTHER, robots=[robot])
    with pytest.raises(PartlyDone, match=f'Now {STOPPED}') as raised:
        start(fleet, '/models/v2')
    assert fleet.view.state.split_percent == 100
    assert 'Nothing was changed' not in str(raised.value)
    # now the split is what it was: a refusal
    with pytest.raises(UserError, match=r'still runs episode ep_1.*Nothing was changed$') as again:
        start(fleet, '/models/v2')
    assert again.value.exit_status == 1


@pytest.mark.parametrize('command', ['CANARY_START', 'SKIP_SHADOW'])
def test_a_start_that_is_refused_after_the_load_says_what_slot_b_serves(command):
    fleet = LoadingFleet(BY_HAND, OTHER, replies={command: (False, 'not now')})
    with pytest.raises(PartlyDone) as raised:
        start(fleet, '/models/v2', skips_shadow=True)
    text = str(raised.value)
    assert 'refuses: not now' in text and f'Now {STOPPED}; /b serves {OTHER}' in text
    is_skipped = 'slot b may begin without its shadow requirements' in text
    assert is_skipped == (command == 'CANARY_START')
    assert 'Nothing was changed' not in text


def test_a_verdict_that_bars_what_was_loaded_ends_partly_done():
    fleet = LoadingFleet(BY_HAND, OTHER)

    def barred(server: str) -> None:
        a, b = fleet.view.state.slots
        fleet.view = changed(fleet.view, slots=(a, changed(b, state='BARRED')))

    fleet.on_loaded = barred
    with pytest.raises(PartlyDone, match=f'a verdict bars {OTHER}.*/b serves {OTHER}'):
        start(fleet, '/models/v2')


def test_a_rollout_that_begins_while_the_servers_are_checked_goes_on():
    fleet = LoadingFleet(BY_HAND, OTHER)
    before = fleet.view
    fleet.view = changed(before, canary=changed(PROMOTED, state=CanaryPhase.RUNNING))
    with pytest.raises(UserError, match=f'a rollout of {NEW} has begun'):
        start(fleet, '/models/v2', before=before)
    assert fleet.commands == []
