# SPDX-License-Identifier: Apache-2.0
"""A policy is loaded into one server after the other, or into the shadow; loads continue."""

from __future__ import annotations

from typing import Any

import pytest
from support.tools.loading_fleet import LoadingFleet
from support.tools.operator_states import changed, replica_of, robot_of, router_of, slot_of

from lerobot_serve.contract.records import ReplicaState
from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rollout.replica_loading import (
    check_root,
    is_loaded,
    robots_in_slot,
    SlotLoader,
    wait_until_empty,
)
from lerobot_serve.tools.operate.rollout.shadow_loading import (
    load_shadow,
    shadow_server,
    stop_shadow,
)

OLD, NEW = 'v1@1', 'v2@2'
FIRST, SECOND = '/a1/policy_server', '/a2/policy_server'


def fleet(**more: Any) -> LoadingFleet:
    replicas = tuple(replica_of(server, 'READY', policy=OLD) for server in (FIRST, SECOND))
    view = router_of('/r', slots=(slot_of('a', OLD, replicas=replicas),))
    return LoadingFleet(view, **{'loads': NEW, **more})


def loader(client: LoadingFleet) -> SlotLoader:
    return SlotLoader(client.loader, '/r', 'a', {'policy_path': '/models/v2'}, NEW)


def test_an_error_before_the_first_change_is_a_refusal():
    client = fleet()
    client.state[FIRST] = 'configuring'
    with pytest.raises(UserError, match=r'until it is active\. Nothing was changed') as raised:
        loader(client).run(client.view)
    assert raised.value.exit_status == 1


def test_a_step_without_a_reply_says_what_each_server_may_serve():
    client = fleet(replies={(SECOND, 'cleanup'): ResultUnknown('no reply')})
    with pytest.raises(ResultUnknown) as raised:
        loader(client).run(client.view)
    assert f'{FIRST} serves {NEW}; {SECOND} is in the transition cleanup' in str(raised.value)


def test_one_server_after_the_other():
    client = fleet()
    assert loader(client).run(client.view).state.slots[0].policy == NEW
    steps = ['deactivate', 'cleanup', 'set', 'configure', 'activate']
    assert client.calls == [(server, step) for server in (FIRST, SECOND) for step in steps]


def test_a_failure_names_what_is_done_and_left_and_the_next_run_continues():
    client = fleet(replies={(SECOND, 'configure'): False})
    with pytest.raises(PartlyDone) as raised:
        loader(client).run(client.view)
    text = str(raised.value)
    assert f'{SECOND} could not configure: the files are damaged' in text
    assert f'Now {FIRST} serves {NEW}; {SECOND} serves nothing: it could not configure.' in text
    assert 'Type the same command again' in text
    assert raised.value.exit_status == 4
    client.replies, client.calls = {}, []
    assert loader(client).run(client.view).state.slots[0].replicas[1].policy == NEW
    assert client.calls == [(SECOND, step) for step in ('set', 'configure', 'activate')]


@pytest.mark.parametrize(
    ('wrong', 'text'),
    [
        ({'missing': SECOND}, f'{SECOND} of slot a does not run'),
        ({'root': ''}, 'has no policy_root'),
        ({'root': '/other'}, 'not below /other'),
    ],
)
def test_nothing_is_changed_when_one_server_cannot_load(wrong, text):
    client = fleet(**wrong)
    with pytest.raises(UserError, match='Nothing was changed') as raised:
        loader(client).run(client.view)
    assert text in str(raised.value) and not client.calls


def test_other_files_under_the_same_path_stop_the_load():
    client = fleet(loads='v2@3')
    with pytest.raises(UserError, match=r'loaded v2@3, expected v2@2.*differ between'):
        loader(client).run(client.view)
    assert {server for server, _ in client.calls} == {FIRST}


@pytest.mark.parametrize(
    ('state', 'unloading'),
    [('active', ['deactivate', 'cleanup']), ('inactive', ['cleanup']), ('unconfigured', [])],
)
def test_a_server_is_unloaded_from_each_state(state, unloading):
    client = fleet()
    client.state[FIRST] = state
    loader(client).run(client.view)
    steps = [step for server, step in client.calls if server == FIRST]
    assert steps == [*unloading, 'set', 'configure', 'activate']


def test_a_server_in_transition_is_left_alone():
    client = fleet()
    client.state[FIRST] = 'configuring'
    with pytest.raises(UserError, match='is configuring; wait'):
        loader(client).run(client.view)
    assert not client.calls


@pytest.mark.parametrize('state', ReplicaState.State.__members__)
def test_a_replica_is_loaded_when_it_serves_the_policy(state):
    replica = replica_of(FIRST, state, policy=NEW)
    assert is_loaded(replica, NEW) == (state in ('READY', 'POLICY_MISMATCH'))
    assert not is_loaded(replica, OLD)
    assert not is_loaded(changed(replica, policy=''), '')


@pytest.mark.parametrize('path', ['/models/v2', '/models/deep/v2?chunk=3'])
def test_a_path_below_the_root_is_allowed(path):
    check_root(FIRST, '/models', path)


def test_a_path_beside_the_root_is_refused():
    with pytest.raises(UserError, match='not below /models'):
        check_root(FIRST, '/models', '/models2/v2')


def test_only_running_episodes_of_the_slot_and_router_are_waited_for():
    in_a = robot_of('/r1/edge', slot='a', episode_id='ep_1', server='/r')
    elsewhere = [
        robot_of('/r2/edge', slot='b', episode_id='ep_2', server='/r'),
        robot_of('/r3/edge', slot='a', server='/r'),
    ]
    assert robots_in_slot([in_a, *elsewhere], 'a') == [in_a]

    robots = [in_a, *elsewhere, changed(in_a, node='/r4/edge', server='/other')]
    client = fleet(robots=robots, then=changed(in_a, episode_id=''))
    wait_until_empty(client.loader, 'a', '/r')
    assert client.lines == ['wait for r1: episode ep_1 runs in slot a']
    client.then = in_a
    with pytest.raises(UserError, match='larger --timeout-s'):
        wait_until_empty(client.loader, 'a', '/r')


def test_an_episode_of_a_robot_over_zenoh_is_waited_for():
    before = robot_of('/r1/edge', slot='a', episode_id='ep_1', server='zenoh:/r')
    with pytest.raises(UserError, match='ep_1 in slot a; wait'):
        wait_until_empty(fleet(robots=[before], then=before).loader, 'a', '/r')


def test_the_last_known_episode_of_a_silent_robot_is_waited_for():
    before = robot_of('/r1/edge', slot='a', episode_id='ep_1', server='/r')
    client = fleet(robots=[fleet_state.silent(before, fleet_state.HUNG, 25.0)], then=before)
    with pytest.raises(UserError, match=r'ep_1 in slot a; it is silent for 25 s.*Nothing was'):
        wait_until_empty(client.loader, 'a', '/r')
    (line,) = client.lines
    assert line.startswith('wait for r1: episode ep_1')
    client.then = changed(before, episode_id='')
    wait_until_empty(client.loader, 'a', '/r')


@pytest.mark.parametrize(
    'silent',
    [
        fleet_state.silent(robot_of('/r1/edge'), fleet_state.MUTE),
        fleet_state.silent(robot_of('/r1/edge'), fleet_state.MISSING, 600.0),
    ],
)
def test_a_silent_robot_without_a_last_state_is_reported(silent):
    client = fleet(robots=[silent])
    wait_until_empty(client.loader, 'a', '/r')
    assert client.lines == [f'r1 is {silent.edge.reason}; an episode of it may run in slot a']


ROUTER = router_of('/cell/policy_router')
SERVER = '/cell/rehearsal/policy_server'


def shadow_fleet(shadow: str = 'rehearsal/policy_server', **more: Any) -> LoadingFleet:
    return LoadingFleet(
        ROUTER, 'v2@2', parameters={ROUTER.name: {'shadow_server': shadow}}, **more
    )


def load(client: LoadingFleet, folder: str = '/models/v2') -> Any:
    return load_shadow(client.loader, ROUTER, folder, reason='before the canary')


def test_a_directory_is_loaded_and_who_did_it_is_recorded():
    client = shadow_fleet()
    result = load(client)
    steps = ('deactivate', 'cleanup', 'set', 'configure', 'activate')
    assert client.calls == [(SERVER, step) for step in steps]
    assert client.given == {'policy_path': '/models/v2', 'policy_name': ''}
    assert client.commands == [
        ('NOTE', 'kim@lab: loads /models/v2 into the shadow: before the canary')
    ]
    assert f'{SERVER} serves v2@2 in shadow' in result.text


@pytest.mark.parametrize('reply', [NotReached('not there'), ResultUnknown('not there')])
def test_a_load_that_no_router_records_is_done_all_the_same(reply):
    client = shadow_fleet(replies={'NOTE': reply})
    assert load(client).text.endswith('. /cell/policy_router has not recorded it: not there')
    client.replies['NOTE'] = (False, 'not configured')
    text = stop_shadow(client.loader, ROUTER).text
    assert text.endswith('has not recorded it: not configured')


def test_the_shadow_is_unloaded():
    client = shadow_fleet()
    result = stop_shadow(client.loader, ROUTER)
    assert [step for _, step in client.calls] == ['deactivate', 'cleanup']
    assert 'is unloaded' in result.text and 'unloads the shadow' in client.commands[0][1]


@pytest.mark.parametrize(
    ('client', 'folder', 'text'),
    [
        (shadow_fleet(shadow=''), '/models/v2', 'has no shadow'),
        (shadow_fleet(missing=SERVER), '/models/v2', 'does not run'),
        (shadow_fleet(), '/elsewhere/v2', 'not below /models'),
    ],
)
def test_what_cannot_be_loaded_changes_nothing(client, folder, text):
    with pytest.raises(UserError, match='Nothing was changed') as raised:
        load(client, folder)
    assert text in str(raised.value)
    assert client.calls == client.commands == []


def test_a_load_that_fails_half_way_says_what_the_shadow_serves():
    client = shadow_fleet(replies={(SERVER, 'configure'): False})
    with pytest.raises(PartlyDone, match='could not configure: the files') as raised:
        load(client)
    assert f'Now {SERVER} serves nothing' in str(raised.value)
    assert client.commands == []


@pytest.mark.parametrize(('shadow', 'full'), [('/x/s', '/x/s'), ('s', '/cell/s')])
def test_its_name_is_relative_to_the_router(shadow, full):
    assert shadow_server(shadow_fleet(shadow=shadow), ROUTER.name) == full


def test_a_name_is_no_directory(capsys):
    assert main(['rollout', 'shadow', 'v2']) == 2
    assert 'give the directory of a policy, with a /' in capsys.readouterr().err
