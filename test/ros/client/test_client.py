# SPDX-License-Identifier: Apache-2.0
"""The client in plain Python with real servers and routers over Zenoh."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from support.nodes.small_client import JOINTS
from support.nodes.zenoh_links import free_endpoint

from lerobot_serve.client import (
    AsyncPolicyClient,
    NotFinite,
    PolicyClient,
    PolicyFailed,
    ServerUnavailable,
    SessionRejected,
    TooLate,
)
from lerobot_serve.contract.schema import Refusal

SHAPE = 'joints=6,chunk=30,cameras=front:48x64+wrist:48x64,fps=30'
STATE = np.linspace(-1, 1, 6)
RAMP = np.linspace(0, 0.01, 30)
LIMIT_S = 20.0


@pytest.fixture
def link() -> str:
    """Servers and routers listen on Zenoh."""
    return 'zenoh'


def images(session) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(1)
    return {
        name: generator.integers(0, 256, (48, 64, 3), np.uint8) for name in session.camera_names
    }


@pytest.fixture
def server(rig):
    rig.start(policy_kind='null', policy_path=SHAPE)
    return rig


def connect(rig, name: str = '/policy_server', **changes) -> PolicyClient:
    endpoint = rig.fleet.links.endpoint(name)
    return PolicyClient.connect(name, endpoints=endpoint, timeout_s=LIMIT_S, **changes)


@pytest.fixture
def client(server) -> Iterator[PolicyClient]:
    with connect(server, client_id='notebook') as made:
        yield made


def test_a_chunk_is_that_of_the_policy(server, client):
    info = client.describe()
    assert info.state_names == info.action_names == JOINTS
    assert [(c.height, c.width) for c in info.cameras] == [(48, 64), (48, 64)]
    for codec in ('raw', 'jpeg'):
        with client.open(codec=codec, task='reach') as session:
            for number in range(1, 4):
                chunk = session.predict(STATE, images(session))
                np.testing.assert_allclose(chunk.actions[:, 0], -1 + RAMP, atol=1e-6)
                assert (chunk.sequence, chunk.actions.shape) == (number, (30, 6))
                assert chunk.fingerprint == session.fingerprint == info.policy
                assert chunk.timings.round_trip_ms > 0
            assert session.begin_episode() == session.predict(STATE, images(session)).episode_id
            assert server.status().active_sessions == 1
        server.wait(lambda: server.status().active_sessions == 0, 'the session is closed')
    assert set(server.drops()) == set()


def test_a_server_refuses_other_names_in_its_words(client):
    info = client.describe()
    with pytest.raises(SessionRejected, match='the order differs') as caught:
        client.open(action_names=info.action_names[::-1])
    assert caught.value.code is Refusal.ACTION_NAMES
    with pytest.raises(SessionRejected, match='the policy needs cameras'):
        client.open(cameras=['observation.images.front'])


def test_a_server_that_restarts_costs_time_and_no_error(server, client):
    session = client.open()
    session.predict(STATE, images(session))
    process = server.fleet.processes['policy_server']
    process.kill()
    process.wait()
    with pytest.raises(ServerUnavailable, match=r'policy_server|nothing answers'):
        session.predict(STATE, images(session), timeout_s=0.3)
    server.start(policy_kind='null', policy_path=SHAPE)
    chunk = session.predict(STATE, images(session))
    assert chunk.actions.shape == (30, 6)
    assert session.counts['sessions'] >= 2


def test_the_other_names_of_a_site_are_shown(server, client):
    endpoint = server.fleet.links.endpoint('/policy_server')
    with pytest.raises(ServerUnavailable, match=r'no server /policy_router .* /policy_server'):
        PolicyClient.connect('policy_router', endpoints=endpoint, timeout_s=1.0)


def test_requests_of_the_same_session_are_superseded_at_the_server(rig):
    rig.start(policy_kind='steered', policy_path=rig.steering.path(chunk=30))
    rig.steering.turns.close_gate()
    with connect(rig) as client, client.open() as session:
        with pytest.raises(TooLate):
            session.predict(STATE, timeout_s=0.2)
        rig.steering.open_gates()
        chunk = session.predict(STATE)
        assert chunk.sequence == 2


def test_a_router_places_episodes_and_flags_another_policy(router_rig):
    router_rig.slots(split_percent=50)
    slots = {}
    with connect(router_rig, '/policy_router') as client, client.open() as session:
        for slot in ('a', 'b', 'a'):
            name = router_rig.episode(slot, salt=len(slots))
            session.begin_episode(episode_id=name)
            chunk = session.predict(STATE)
            assert chunk.slot == slot
            slots[name] = chunk.policy_changed
        assert list(slots.values()) == [False, True, True]


def test_many_sessions_of_one_loop(server):
    endpoint = server.fleet.links.endpoint('/policy_server')

    async def drive(client: AsyncPolicyClient, number: int) -> int:
        async with await client.open() as session:
            frames = images(session)
            async with session.stream() as stream:
                for step in range(5):
                    stream.put(STATE + number + step, frames)
                    chunk = await anext(stream)
                    assert abs(chunk.actions[0, 0] - (number + step - 1)) < 1e-5
                return stream.superseded

    async def run() -> list[int]:
        async with AsyncPolicyClient.connect(
            'policy_server', endpoints=endpoint, timeout_s=LIMIT_S
        ) as client:
            return await asyncio.gather(*(drive(client, number) for number in range(4)))

    assert asyncio.run(run()) == [0] * 4


@pytest.mark.parametrize(('task', 'error'), [('nan', NotFinite), ('raise', PolicyFailed)])
def test_what_goes_wrong_in_the_policy_has_an_error_of_its_own(rig, task, error):
    rig.start(policy_kind='steered', policy_path=rig.steering.path(chunk=30))
    with connect(rig) as client, client.open() as session:
        with pytest.raises(error):
            session.predict(STATE, task=task)
        assert len(session.predict(STATE)) == 30


def test_two_servers_of_one_name_are_not_used(rig):
    first, second = free_endpoint(), free_endpoint()
    for number, endpoint in enumerate((first, second)):
        rig.fleet.start(
            f'server_{number}',
            'policy_server',
            policy_kind='null',
            policy_path=SHAPE,
            zenoh_listen=[endpoint],
        )
    for endpoint in (first, second):
        PolicyClient.connect('policy_server', endpoints=endpoint, timeout_s=LIMIT_S).close()
    with pytest.raises(ServerUnavailable, match='2 servers have the name /policy_server'):
        for _ in range(20):
            with PolicyClient.connect(
                'policy_server', endpoints=(first, second), timeout_s=1.0
            ) as client:
                client.describe()


@pytest.mark.parametrize('offers', [True, False])
def test_a_client_of_the_same_host_uses_the_local_path_where_it_is_offered(rig, offers):
    rig.start(policy_kind='null', policy_path=SHAPE, local_path=offers)
    for uses in (True, False):
        with connect(rig, local_path=uses) as client, client.open() as session:
            for _ in range(20):
                assert session.predict(STATE, images(session)).actions.shape == (30, 6)
            local = session._plans._link._client.local
            assert local.is_connected is (offers and uses)
    assert set(rig.drops()) == set()
