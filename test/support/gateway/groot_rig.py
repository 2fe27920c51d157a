# SPDX-License-Identifier: Apache-2.0
"""The door for GR00T's client over the fake upstream, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.groot.door import make_door
from support.gateway.gateway_rig import GatewayRig
from support.gateway.groot_client import GrootClient

EXPOSURE = Exposure('groot')


class GrootRig(GatewayRig):
    """A door, and clients in threads."""

    def __init__(self, exposure: Exposure = EXPOSURE, **settings: object) -> None:
        super().__init__()
        self.door = make_door(self.gateway, exposure, settings)

    def client(self, **options: str) -> GrootClient:
        return GrootClient(self.door.address, **options)

    @property
    def refused(self) -> dict[str, int]:
        found = self.gateway.counters.refused
        return {reason: count for (_, reason), count in found.items()}


@contextlib.asynccontextmanager
async def running(*arguments: object, **settings: object) -> AsyncIterator[GrootRig]:
    rig = GrootRig(*arguments, **settings)
    await rig.door.start()
    try:
        yield rig
    finally:
        await rig.door.stop()
        await rig.gateway.drain()


@contextlib.asynccontextmanager
async def client_of(rig: GrootRig, **options: str) -> AsyncIterator[GrootClient]:
    client = rig.client(**options)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)
