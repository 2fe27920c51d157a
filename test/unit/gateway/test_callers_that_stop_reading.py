# SPDX-License-Identifier: Apache-2.0
"""A caller of any door stops reading: all others are answered, and it is kept within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
from dataclasses import replace

import pytest
from support.gateway.gateway_rig import GatewayRig, in_loop

from benchmarks.gateways import mixed, paced_clients
from benchmarks.gateways.wire_requests import CAMERA_PREFIX, JOINT_NAMES
from benchmarks.peers.peer_process import Address, frames, ImageSet
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.doors import load_door
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.parameters import door_settings, GatewayParameters

SMALL = ImageSet(1, 24, 32)
CONTRACT = replace(
    EXAMPLE_CONTRACT,
    state_names=JOINT_NAMES,
    action_names=JOINT_NAMES,
    cameras={f'{CAMERA_PREFIX}front': (24, 32, 3)},
    # 48 kB, so that a few replies are more than the kernel keeps
    chunk_steps=2000,
)
PARAMETERS = GatewayParameters(lerobot_policy_names=('*',))


@contextlib.asynccontextmanager
async def running_doors(rig: GatewayRig) -> AsyncIterator[dict[str, Address]]:
    rig.upstream.contract = CONTRACT
    addresses = {}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(rig.gateway.drain)
        for name in mixed.KINDS:
            settings = door_settings(PARAMETERS, name)
            door = load_door(name)(rig.gateway, Exposure(name), settings)
            await door.start()
            stack.push_async_callback(door.stop)
            host, port = door.address.rpartition('/')[2].rsplit(':', 1)
            addresses[name] = Address(host, int(port))
        yield addresses


@pytest.mark.parametrize('stopping', mixed.STOPPING)
def test_the_others_are_answered(stopping):
    async def test():
        rig = GatewayRig()
        async with running_doors(rig) as doors:
            clients = {name: kind(doors[name], frames(SMALL)) for name, kind in mixed.KINDS.items()}
            full = mixed.KINDS[stopping](doors[stopping], frames(SMALL))
            await paced_clients.open_all([*clients.values(), full])
            try:
                sent = await paced_clients.fill(full)
                assert 0 < sent < paced_clients.FLOOD_REQUESTS
                await asyncio.gather(*(client.ask() for client in clients.values()))
            finally:
                await asyncio.gather(*(each.close() for each in [*clients.values(), full]))

    in_loop(test)
