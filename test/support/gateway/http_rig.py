# SPDX-License-Identifier: Apache-2.0
"""The HTTP door over the fake upstream, and a client of it."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
import contextlib
from dataclasses import dataclass
import json
from typing import Any

import aiohttp
import numpy as np
import simplejpeg

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.http.door import HttpDoor
from support.gateway.gateway_rig import CAMERA, DoorRig

HEIGHT, WIDTH, _ = EXAMPLE_CONTRACT.cameras[CAMERA]


def image() -> np.ndarray:
    """Return a picture whose channels differ."""
    return np.full((HEIGHT, WIDTH, 3), (200, 100, 50), np.uint8)


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def jpeg_text(pixels: np.ndarray) -> str:
    return base64_of(simplejpeg.encode_jpeg(pixels, quality=95, colorspace='RGB'))


def body(**changes: Any) -> dict[str, Any]:
    """Return a body that fits the example contract; None leaves a field out."""
    given = {'episode_id': 'ep_xyz', 'instruction': 'pick', 'state': [1, 2.5, 3]}
    given |= {'image': jpeg_text(image())} | changes
    return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True)
class Reply:
    status: int
    content: Any
    headers: Any

    @property
    def error(self) -> Any:
        return self.content['error']


class HttpRig(DoorRig):
    """A gateway with this one door; `refused` counts by reason."""

    def __init__(self, exposure: dict[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(**settings.pop('gateway', {}))
        self.door = HttpDoor(
            self.gateway, Exposure('http', **(exposure or {})), EndpointSettings(**settings)
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[HttpRig]:
        async with super().running(), aiohttp.ClientSession() as self.session:
            yield self

    async def act(self, content: Any, **options: Any) -> Reply:
        return await self.ask('POST', '/act', json=content, **options)

    async def ask(self, method: str, path: str, **options: Any) -> Reply:
        url = f'{self.door.address}{path}'
        async with self.session.request(method, url, **options) as reply:
            text = await reply.text()
            is_json = reply.content_type == 'application/json'
            return Reply(reply.status, json.loads(text) if is_json else text, reply.headers)
