# SPDX-License-Identifier: Apache-2.0
"""A policy is loaded into one server after the other; an interrupted load continues."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.tools.operator_states import changed, replica_of, robot_of, router_of, slot_of

from lerobot_serve.contract.records import ReplicaState
from lerobot_serve.errors import UserError
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.outcome import NotReached, PartlyDone, ResultUnknown
from lerobot_serve.tools.operate.rollout.replica_loading import (
    check_root,
    is_loaded,
    robots_in_slot,
    ServerLoader,
    SlotLoader,
    wait_until_empty,
)
from lerobot_serve.tools.operate.silent_robots import hung_robot, missing_robot, mute_robot

OLD, NEW = 'v1@1', 'v2@2'
FIRST, SECOND = '/a1/policy_server', '/a2/policy_server'


@dataclass
class FakeClient:
    """Servers and a router that reports them at once. `fails` is a transition of SECOND."""

    fails: str = ''
    missing: str = ''
    root: str = '/models'
    loads: str = NEW
    state: dict[str, str] = field(default_factory=lambda: {FIRST: 'active', SECOND: 'active'})
    policy: dict[str, str] = field(default_factory=lambda: {FIRST: OLD, SECOND: OLD})
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def view(self) -> RouterView:
        replicas = tuple(
            replica_of(server, 'READY' if self.state[server] == 'active' else 'UNAVAILABLE',
                        policy=policy)
            for server, policy in self.policy.items()
        )  # fmt: skip
        return router_of('/r', slots=(slot_of('a', replicas[0].policy, replicas=replicas),))

    def get_parameters(self, server: str, names: list[str]) -> dict[str, Any]:
        if server == self.missing:
            raise NotReached('not there')
        return dict.fromkeys(names, self.root)

    def lifecycle_state(self, server: str) -> str:
        return self.state[server]

    def change_state(self, server: str, transition: str, timeout_s: float) -> bool:
        self.calls.append((server, transition))
        if server == SECOND and transition == self.fails:
            return False
        self.state[server] = {'activate': 'active', 'cleanup': 'unconfigured'}.get(
            transition, 'inactive'
        )
        if transition == 'activate':
            self.policy[server] = self.loads
        return True

    def set_parameters(self, server: str, values: dict[str, object]) -> str:
        self.calls.append((server, 'set'))
        return ''

    def server_status(self, server: str) -> tuple[str, str]:
        return self.policy[server], 'the files are damaged'

    def wait_for_router(self, _: str, accepts: Any, timeout_s: float = 0.0) -> RouterView | None:
        return self.view if accepts(self.view) else None

    def router(self, _: str) -> RouterView:
        return self.view


def loader(client: FakeClient) -> SlotLoader:
    values = {'policy_path': '/models/v2'}
    return SlotLoader(ServerLoader(client, 1.0, lambda _: None), '/r', 'a', values, NEW)


def test_an_error_before_the_first_change_is_a_refusal():
    client = FakeClient()
    client.state[FIRST] = 'configuring'
    with pytest.raises(UserError, match=r'until it is active\. Nothing was changed') as raised:
        loader(client).run(client.view)
    assert raised.value.exit_status == 1


def test_a_step_without_a_reply_says_what_each_server_may_serve():
    client = FakeClient()
    change = client.change_state

    def no_reply(server: str, transition: str, timeout_s: float) -> bool:
        if (server, transition) == (SECOND, 'cleanup'):
            raise ResultUnknown('no reply')
        return change(server, transition, timeout_s)

    client.change_state = no_reply
    with pytest.raises(ResultUnknown) as raised:
        loader(client).run(client.view)
    assert f'{FIRST} serves {NEW}; {SECOND} is in the transition cleanup' in str(raised.value)


def test_one_server_after_the_other():
    client = FakeClient()
    assert loader(client).run(client.view).state.slots[0].policy == NEW
    steps = ['deactivate', 'cleanup', 'set', 'configure', 'activate']
    assert client.calls == [(server, step) for server in (FIRST, SECOND) for step in steps]


def test_a_failure_names_what_is_done_and_left_and_the_next_run_continues():
    client = FakeClient(fails='configure')
    with pytest.raises(PartlyDone) as raised:
        loader(client).run(client.view)
    text = str(raised.value)
    assert f'{SECOND} could not configure: the files are damaged' in text
    assert f'Now {FIRST} serves {NEW}; {SECOND} serves nothing: it could not configure.' in text
    assert 'Type the same command again' in text
    assert raised.value.exit_status == 4
    client.fails, client.calls = '', []
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
    client = FakeClient(**wrong)
    with pytest.raises(UserError, match='Nothing was changed') as raised:
        loader(client).run(client.view)
    assert text in str(raised.value) and not client.calls


def test_other_files_under_the_same_path_stop_the_load():
    client = FakeClient(loads='v2@3')
    with pytest.raises(UserError, match=r'loaded v2@3, expected v2@2.*differ between'):
        loader(client).run(client.view)
    assert {server for server, _ in client.calls} == {FIRST}


@pytest.mark.parametrize(
    ('state', 'unloading'),
    [('active', ['deactivate', 'cleanup']), ('inactive', ['cleanup']), ('unconfigured', [])],
)
def test_a_server_is_unloaded_from_each_state(state, unloading):
    client = FakeClient()
    client.state[FIRST] = state
    loader(client).run(client.view)
    steps = [step for server, step in client.calls if server == FIRST]
    assert steps == [*unloading, 'set', 'configure', 'activate']


def test_a_server_in_transition_is_left_alone():
    client = FakeClient()
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

    class Client:
        ends = True

        def find_robots(self, *, may_be_none: bool) -> list[RobotView]:
            return [in_a, *elsewhere, changed(in_a, node='/r4/edge', server='/other')]

        def wait_for_robot(self, node: str, accepts: Any) -> RobotView | None:
            assert node == in_a.node and not accepts(in_a)
            ended = changed(in_a, episode_id='')
            return ended if self.ends and accepts(ended) else None

    lines: list[str] = []
    wait_until_empty(ServerLoader(Client(), 1.0, lines.append), 'a', '/r')
    assert lines == ['wait for r1: episode ep_1 runs in slot a']
    Client.ends = False
    with pytest.raises(UserError, match='larger --timeout-s'):
        wait_until_empty(ServerLoader(Client(), 1.0, lines.append), 'a', '/r')


def test_an_episode_of_a_robot_over_zenoh_is_waited_for():
    before = robot_of('/r1/edge', slot='a', episode_id='ep_1', server='zenoh:/r')
    with pytest.raises(UserError, match='ep_1 in slot a; wait'):
        wait_until_empty(
            ServerLoader(SilentFleet([before], before), 1.0, lambda _: None), 'a', '/r'
        )


@dataclass
class SilentFleet:
    """Robots, and the state of the next message of each; None when none arrives."""

    robots: list[RobotView]
    then: RobotView | None = None

    def find_robots(self, *, may_be_none: bool) -> list[RobotView]:
        return self.robots

    def wait_for_robot(self, node: str, accepts: Any) -> RobotView | None:
        return self.then if self.then and accepts(self.then) else None


def test_the_last_known_episode_of_a_silent_robot_is_waited_for():
    before = robot_of('/r1/edge', slot='a', episode_id='ep_1', server='/r')
    silent = hung_robot(before, 25.0)
    lines: list[str] = []
    with pytest.raises(UserError, match=r'ep_1 in slot a; it is silent for 25 s.*Nothing was'):
        wait_until_empty(ServerLoader(SilentFleet([silent], before), 1.0, lines.append), 'a', '/r')
    assert len(lines) == 1 and lines[0].startswith('wait for r1: episode ep_1')
    ended = changed(before, episode_id='')
    wait_until_empty(ServerLoader(SilentFleet([silent], ended), 1.0, lines.append), 'a', '/r')


@pytest.mark.parametrize('silent', [mute_robot('/r1/edge'), missing_robot('/r1/edge', 600.0)])
def test_a_silent_robot_without_a_last_state_is_reported(silent):
    lines: list[str] = []
    wait_until_empty(ServerLoader(SilentFleet([silent]), 1.0, lines.append), 'a', '/r')
    assert lines == [f'r1 is {silent.edge.reason}; an episode of it may run in slot a']
