# SPDX-License-Identifier: Apache-2.0
"""A caller of any door stops reading, or leaves: it is kept within bounds, others are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib

import pytest
from support.gateway.gateway_rig import GatewayRig, in_loop, until
from support.gateway.robot_client_rig import soon
from support.replacing import replace

from benchmarks.gateways import mixed, paced_clients
from benchmarks.gateways.wire_clients import WireClient
from benchmarks.gateways.wire_requests import CAMERA_PREFIX, JOINT_NAMES
from benchmarks.peers.peer_process import Address, frames, ImageSet
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.doors import load_door
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters
from lerobot_serve.gateway.policy_service import door as policy_service

pytestmark = pytest.mark.usefixtures('grpc_thread')

SIZE = ImageSet(1, 240, 256)
CONTRACT = replace(
    EXAMPLE_CONTRACT,
    state_names=JOINT_NAMES,
    action_names=JOINT_NAMES,
    cameras={f'{CAMERA_PREFIX}front': (240, 256, 3)},
    # 48 kB, so that a few replies are more than the kernel keeps
    chunk_steps=2000,
)
# imported before any limit of time
MAKE = {name: load_door(name) for name in mixed.KINDS}
PARAMETERS = GatewayParameters(lerobot_policy_names=('*',))


@contextlib.asynccontextmanager
async def running_doors(rig: GatewayRig) -> AsyncIterator[dict[str, Address]]:
    rig.upstream.contract = CONTRACT
    addresses = {}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rig.gateway.drain)
        for name in mixed.KINDS:
            settings = door_settings(PARAMETERS, name)
            door = MAKE[name](rig.gateway, Exposure(name), settings)
            await door.start()
            stack.push_async_callback(door.stop)
            host, port = door.address.rpartition('/')[2].rsplit(':', 1)
            addresses[name] = Address(host, int(port))
        yield addresses


@contextlib.asynccontextmanager
async def full_client(doors: dict[str, Address], stopping: str) -> AsyncIterator[WireClient]:
    """Open a client that has sent all that it can, and has read nothing."""
    full = mixed.KINDS[stopping](doors[stopping], frames(SIZE))
    await paced_clients.open_all([full])
    try:
        assert await paced_clients.fill(full) > 1
        yield full
    finally:
        await full.close()


@pytest.mark.parametrize('stopping', mixed.STOPPING)
def test_the_others_are_answered(monkeypatch, caplog, stopping):
    # ZeroMQ takes all requests, and its door drops the replies
    monkeypatch.setattr(paced_clients, 'FLOOD_LIMIT_S', 1.0)

    async def test():
        rig = GatewayRig()
        async with running_doors(rig) as doors:
            clients = [kind(doors[name], frames(SIZE)) for name, kind in mixed.KINDS.items()]
            await paced_clients.open_all(clients)
            try:
                async with full_client(doors, stopping):
                    await asyncio.gather(*(client.ask() for client in clients))
            finally:
                await asyncio.gather(*(client.close() for client in clients))

    in_loop(test)
    assert [each.getMessage() for each in caplog.records if each.levelname == 'ERROR'] == []


async def test_a_stream_that_reads_no_replies_gives_its_place_to_others(monkeypatch):
    monkeypatch.setattr(policy_service, 'WRITE_LIMIT_S', 0.2)
    rig = GatewayRig()
    counted = rig.gateway.counters.refused
    async with running_doors(rig) as doors, full_client(doors, 'policy_service'):
        await until(lambda: counted['policy_service', 'stopped_reading'])
        await until(lambda: not rig.upstream.open_sessions)
    assert counted['policy_service', 'stopped_reading'] == 1


@pytest.mark.parametrize('leaving', mixed.KINDS)
async def test_one_that_leaves_ends_its_prediction_and_frees_its_place(leaving):
    rig = GatewayRig()
    async with running_doors(rig) as doors:
        client = mixed.KINDS[leaving](doors[leaving], frames(SIZE))
        await client.open()
        rig.upstream.hold()
        asking = asyncio.create_task(client.ask())
        await soon(lambda: rig.upstream.requests)
        await client.close()
        await soon(lambda: rig.gateway.counters.requests[leaving, 'cancelled'])
        # an episode over HTTP outlives its connection
        await soon(lambda: leaving == 'http' or not rig.gateway.callers)
        rig.upstream.release()
        asking.cancel()
        await asyncio.wait([asking])
