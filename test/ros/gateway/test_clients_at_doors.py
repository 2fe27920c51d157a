# SPDX-License-Identifier: Apache-2.0
"""Clients of HTTP, openpi and GR00T have sessions at a real router with real servers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
import contextlib
import time
from typing import Any

import numpy as np
import pytest
from support.gateway.doors_rig import DoorsRig
from support.gateway.groot_client import GrootClient
from support.gateway.peers import packages_of
from support.nodes.zenoh_links import both_links

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.episode_names import scoped_name

SERVER = '/a/policy_server'
NAMES = [f'joint_{number}.pos' for number in range(6)]
# as a robot would: the router logs each refusal
RETRY_S = 0.2
STATE = np.linspace(-1, 1, 6, dtype=np.float32)


class HttpClient:
    """Sends each request over a connection of its own."""

    def __init__(self, rig: DoorsRig) -> None:
        self._rig = rig

    def ask(self, state: np.ndarray, episode_id: str) -> tuple[np.ndarray, str]:
        """Return the actions, and the slot that gave them."""
        asked = {'episode_id': episode_id, 'state': state.tolist()}
        status, content, headers = self._rig.act(asked)
        assert status == 200, content
        routing, slot = content['routing'], content['routing']['slot']
        key = scoped_name('127.0.0.1/', episode_id)
        assert routing == {'slot': slot, 'routing_key': key, 'degraded': False}
        assert headers['X-Reflex-Policy-Slot'] == slot
        assert headers['X-Reflex-Model-Version'].startswith('steered@')
        return np.array(content['actions']), slot

    def close(self) -> None:
        pass


class OpenpiClient:
    """The unmodified one."""

    def __init__(self, rig: DoorsRig) -> None:
        with packages_of('openpi'):
            from openpi_client.websocket_client_policy import WebsocketClientPolicy

            self._client = WebsocketClientPolicy(*rig.host_and_port('openpi'))
        assert self._client.get_server_metadata()['lerobot_serve']['note'] == NO_CAGE

    def ask(self, state: np.ndarray, episode_id: str) -> tuple[np.ndarray, str]:
        reply = self._client.infer({'observation.state': state, 'session_id': episode_id})
        return reply['actions'], reply['lerobot_serve']['slot']

    def close(self) -> None:
        self._client._ws.close()


class Gr00tClient:
    """One socket."""

    def __init__(self, rig: DoorsRig) -> None:
        self.client = GrootClient(rig.addresses['groot'])
        assert self.client.call('get_modality_config')['state'].modality_keys == NAMES

    def ask(
        self, state: np.ndarray, episode_id: str, task: str = 'lift the cube'
    ) -> tuple[np.ndarray, str]:
        observation = {
            'video': {},
            'state': {name: state[at].reshape(1, 1, 1) for at, name in enumerate(NAMES)},
            'language': {'annotation.human.task_description': [[task]]},
        }
        actions, said = self.client.get_action(observation, {'episode_id': episode_id})
        return actions['actions'][0], said['slot']

    def close(self) -> None:
        self.client.close()


CLIENTS: dict[str, Any] = {'http': HttpClient, 'openpi': OpenpiClient, 'groot': Gr00tClient}


@pytest.fixture
def connect() -> Iterator[Any]:
    """Returns clients of a door, closed after the test."""
    with contextlib.ExitStack() as stack:
        yield lambda rig, door: stack.enter_context(contextlib.closing(CLIENTS[door](rig)))


@pytest.mark.slow
@both_links
@pytest.mark.parametrize('door', CLIENTS)
def test_two_clients_at_once_are_driven_through_a_router(router_rig, doors, connect, door):
    router_rig.slots(split_percent=50)
    rig = doors(door)
    clients = [connect(rig, door), connect(rig, door)]
    names = [router_rig.episode(slot, owner='127.0.0.1/') for slot in 'ab']
    for step in range(3):
        for number, client in enumerate(clients):
            state = STATE + number + step
            actions, slot = client.ask(state, names[number])
            assert actions.shape == (30, 6)
            assert np.allclose(actions[0], state, atol=1e-5)
            assert slot == 'ab'[number]
    router_rig.wait(lambda: router_rig.state.sessions == 2, 'a session for each client')
    assert rig.counters.requests == {(door, 'ok'): 6}
    predicted = [router_rig.steering(slot).events('predict') for slot in 'ab']
    assert sum(map(len, predicted)) == 6


def test_a_client_that_leaves_ends_its_session(router_rig, doors, connect):
    router_rig.server('a', 'prod', max_sessions=1)
    rig = doors('openpi', server=SERVER)
    first = connect(rig, 'openpi')
    first.ask(STATE, 'e')
    with pytest.raises(Exception, match='429'):
        connect(rig, 'openpi')
    first.close()
    router_rig.wait(lambda: not rig.counters.callers['openpi'], 'its session is closed')
    assert connect(rig, 'openpi').ask(STATE, 'e')[1] == 'prod'


def test_pictures_reach_a_policy_with_cameras(router_rig, doors):
    router_rig.fleet.start(
        'a',
        'policy_server',
        namespace='/a',
        policy_kind='null',
        policy_path='joints=6,chunk=30,cameras=front:48x64,fps=30',
    )
    rig = doors('http', server=SERVER)
    raw = base64.b64encode(bytes(48 * 64 * 3)).decode()
    given = {'episode_id': 'e', 'state': STATE.tolist()}
    status, content, _ = rig.act({**given, 'image': {'data': raw, 'shape': [48, 64, 3]}})
    assert status == 200, content
    status, content, _ = rig.act(given)
    assert status == 400 and 'front' in content['error']['text']


@pytest.mark.slow
def test_nan_and_a_router_without_servers_are_errors_in_words(router_rig, doors, connect):
    router_rig.slots(split_percent=100, slot_unhealthy_threshold=1000)
    rig = doors('groot', request_timeout_s=2.0)
    client = connect(rig, 'groot')
    client.ask(STATE, '')
    with pytest.raises(RuntimeError, match='NaN'):
        client.ask(STATE, '', task='nan')
    for name in ('a', 'b'):
        router_rig.kill(name)
    router_rig.wait_for_health('unavailable')
    with pytest.raises(RuntimeError, match='Server error'):
        client.ask(STATE, '')
    router_rig.server('a', 'a')

    def is_served() -> bool:
        try:
            return np.allclose(client.ask(STATE, '')[0][0], STATE, atol=1e-5)
        except RuntimeError:
            time.sleep(RETRY_S)
            return False

    router_rig.wait(is_served, 'the client continues without a restart')
    assert client.client.call('ping')['status'] == 'ok'
