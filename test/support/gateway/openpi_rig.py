# SPDX-License-Identifier: Apache-2.0
"""The door for openpi's client over the fake upstream, and clients of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import contextlib
from typing import Any

import aiohttp
import numpy as np

from benchmarks.gateways.wire_requests import UPGRADE
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.openpi.door import OpenpiDoor
from support.gateway.gateway_rig import CAMERA, DoorRig
from support.gateway.openpi_messages import packed, unpacked
from support.gateway.peers import packages_of

STATE = 'observation/state'
MAPPING = f"""
cameras: {{observation/image: {CAMERA}}}
state: [{STATE}]
openpi: {{metadata: {{reset_pose: [1, 2]}}}}
"""


def observation(**changes: Any) -> dict[str, Any]:
    """Return an observation that fits the example contract."""
    height, width, channels = EXAMPLE_CONTRACT.cameras[CAMERA]
    image = np.full((height, width, channels), 7, np.uint8)
    return {'observation/image': image, STATE: np.arange(3.0), 'prompt': 'pick'} | changes


class OpenpiRig(DoorRig):
    """A gateway with this one door; `refused` counts by reason."""

    def __init__(self, folder, exposure: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings.pop('gateway', {}))
        mapping = folder / 'mapping.yaml'
        mapping.write_text(settings.pop('mapping', MAPPING))
        self.door = OpenpiDoor(
            self.gateway,
            Exposure('openpi', **(exposure or {})),
            EndpointSettings(mapping=str(mapping), **settings),
            clock=lambda: self.now_s,
        )

    @contextlib.asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[Client]:
        """Connect, by another implementation of websockets."""
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(self.door.address, max_msg_size=0, **options) as socket,
        ):
            yield Client(socket, unpacked(await socket.receive_bytes()))

    @contextlib.asynccontextmanager
    async def unmodified_client(self, *token: str) -> AsyncIterator[Any]:
        """Connect with openpi's own client, which blocks."""
        with packages_of('openpi'):
            from openpi_client.websocket_client_policy import WebsocketClientPolicy

            policy = await asyncio.to_thread(WebsocketClientPolicy, *self.host_and_port, *token)
            try:
                yield policy
            finally:
                await asyncio.to_thread(policy._ws.close)

    async def raw(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection after the upgrade, whose frames a test writes itself."""
        reader, writer = await self.raw_request()
        await reader.readuntil(b'\r\n\r\n')
        head = await reader.readexactly(4)
        await reader.readexactly(int.from_bytes(head[2:], 'big'))
        return reader, writer

    async def raw_request(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection that asks for the upgrade."""
        reader, writer = await asyncio.open_connection(*self.host_and_port)
        writer.write(UPGRADE)
        return reader, writer


class Client:
    """One websocket, after its metadata frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, metadata: Any) -> None:
        self.socket, self.metadata = socket, metadata

    async def infer(self, content: dict[str, Any]) -> Any:
        """Return the reply to an observation: a mapping, or the text of a refusal."""
        await self.socket.send_bytes(packed(content))
        answer = await self.socket.receive()
        return unpacked(answer.data) if answer.type is aiohttp.WSMsgType.BINARY else answer.data
