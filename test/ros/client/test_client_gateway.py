# SPDX-License-Identifier: Apache-2.0
"""The client over PolicyService: a real gateway, a real router, a real server."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from support.gateway.doors_rig import start_process
from support.nodes.small_client import JOINTS
from support.nodes.zenoh_links import both_links

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

ROUTER = '/policy_router'
STATE = np.linspace(-1, 1, 6)
LIMIT_S, SHORT_S = 30.0, 0.5
# the error of one request is not the end of its slot
CALM = {'slot_unhealthy_threshold': 1000}


@pytest.fixture
def gateway(router_rig):
    """The process of a gateway before a router; returns the address of its door."""
    return lambda: f'grpc://{start_process(router_rig, "policy_service")}'


def connect(server: str, **changes) -> PolicyClient:
    return PolicyClient.connect(server, **{'timeout_s': LIMIT_S, **changes})


@pytest.mark.slow
@pytest.mark.parametrize('link', ['zenoh'])
def test_a_chunk_is_the_one_over_zenoh(router_rig, gateway, link):
    router_rig.slots(split_percent=50, **CALM)
    names = {slot: router_rig.episode(slot) for slot in ('a', 'b')}
    endpoint = router_rig.fleet.links.endpoint(ROUTER)
    over_grpc = connect(gateway(), client_id='grpc')
    over_zenoh = connect(ROUTER, endpoints=endpoint, client_id='zenoh')
    with over_grpc, over_zenoh:
        assert over_grpc.describe() == over_zenoh.describe()
        sessions = [client.open(task='reach') for client in (over_zenoh, over_grpc)]
        assert sessions[0].fingerprint == sessions[1].fingerprint
        assert sessions[0].warnings == sessions[1].warnings
        assert [session.chunk_steps for session in sessions] == [30, 30]
        for number, slot in enumerate(('a', 'b', 'a')):
            chunks = []
            for session in sessions:
                session.begin_episode(episode_id=names[slot])
                chunks.append(session.predict(STATE + number))
            np.testing.assert_array_equal(chunks[0].actions, chunks[1].actions)
            for name in ('slot', 'policy', 'fingerprint', 'sequence', 'episode_id'):
                assert getattr(chunks[0], name) == getattr(chunks[1], name), name
            assert [chunk.policy_changed for chunk in chunks] == [number > 0] * 2
            assert chunks[1].slot == slot
            assert chunks[1].timings.inference_ms > 0
            assert chunks[1].timings.round_trip_ms > chunks[1].timings.inference_ms
        assert sessions[1].client_id.startswith('gateway/policy_service/grpc@')
        seen = router_rig.steering('a').events('predict')
        assert {line.split()[1].partition('#')[0] for line in seen} == {
            session.client_id for session in sessions
        }
        refused = []
        for client in (over_zenoh, over_grpc):
            with pytest.raises(SessionRejected, match='action_names: the order differs') as caught:
                client.open(action_names=JOINTS[::-1])
            refused.append(caught.value.code)
        assert refused == [Refusal.ACTION_NAMES] * 2
        sessions[1].close()
        router_rig.wait(lambda: router_rig.state.sessions == 1, 'its session is closed')


@pytest.mark.slow
@both_links
def test_errors_streams_and_a_gateway_that_is_killed(router_rig, gateway, link):
    router_rig.slots(**CALM)
    url = gateway()
    with connect(url) as client, client.open() as session:
        for task, error in (('raise', PolicyFailed), ('nan', NotFinite)):
            with pytest.raises(error):
                session.predict(STATE, task=task)
        with session.stream() as stream:
            for step in range(5):
                stream.put(STATE + step)
                assert abs(next(stream).actions[0, 0] - (step - 1)) < 1e-5
        router_rig.kill('gateway')
        with pytest.raises(ServerUnavailable, match='check that the gateway runs') as caught:
            session.predict(STATE, timeout_s=SHORT_S)
        assert url in str(caught.value) and caught.value.may_retry


@pytest.mark.slow
def test_many_sessions_of_one_loop_and_a_router_that_restarts(router_rig, gateway):
    router_rig.slots(**CALM)
    url = gateway()

    async def drive(client: AsyncPolicyClient, number: int) -> None:
        async with await client.open() as session, session.stream() as stream:
            for step in range(5):
                stream.put(STATE + number + step)
                chunk = await anext(stream)
                assert abs(chunk.actions[0, 0] - (number + step - 1)) < 1e-5

    async def run() -> None:
        async with AsyncPolicyClient.connect(url, timeout_s=LIMIT_S) as client:
            await asyncio.gather(*(drive(client, number) for number in range(4)))
            session = await client.open()
            await session.predict(STATE)
            await asyncio.to_thread(router_rig.kill, 'router')
            # late while the gateway still takes the router for slow
            with pytest.raises((ServerUnavailable, TooLate)):
                await session.predict(STATE, timeout_s=SHORT_S)
            await asyncio.to_thread(router_rig.router, slot_a=['a'], slot_b=['b'], **CALM)
            assert len(await session.predict(STATE)) == 30
            assert session.counts['sessions'] >= 2

    asyncio.run(run())
