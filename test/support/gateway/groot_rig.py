# SPDX-License-Identifier: Apache-2.0
"""The door for GR00T's client over the fake upstream, and its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
from contextlib import AbstractAsyncContextManager
from typing import Any

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.groot.door import GrootDoor
from support.gateway.gateway_rig import DoorRig
from support.gateway.groot_client import GrootClient

EXPOSURE = Exposure('groot')


class GrootRig(DoorRig):
    """A door, and clients in threads."""

    def __init__(self, exposure: Exposure = EXPOSURE, **settings: Any) -> None:
        super().__init__()
        self.door = GrootDoor(self.gateway, exposure, EndpointSettings(**settings))

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
