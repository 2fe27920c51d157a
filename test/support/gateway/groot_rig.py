# SPDX-License-Identifier: Apache-2.0
"""The door for GR00T's client over the fake upstream, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
from contextlib import AbstractAsyncContextManager

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.groot.door import make_door
from support.gateway.gateway_rig import DoorRig
from support.gateway.groot_client import GrootClient

EXPOSURE = Exposure('groot')


class GrootRig(DoorRig):
    """A door, and clients in threads."""

    def __init__(self, exposure: Exposure = EXPOSURE, **settings: object) -> None:
        super().__init__()
        self.door = make_door(self.gateway, exposure, settings)

    def client(self, **options: str) -> GrootClient:
        return GrootClient(self.door.address, **options)


def running(*arguments: object, **settings: object) -> AbstractAsyncContextManager[GrootRig]:
    return GrootRig(*arguments, **settings).running()


@contextlib.asynccontextmanager
async def client_of(rig: GrootRig, **options: str) -> AsyncIterator[GrootClient]:
    client = rig.client(**options)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.close)
