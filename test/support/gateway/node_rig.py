# SPDX-License-Identifier: Apache-2.0
"""
The node gateway in the process of the test, with a door through which the test is the callers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np

from lerobot_serve.gateway import node as gateway_node
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionRequest
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.ros.process.node_runtime import NodeRuntime

LIMIT_S = 30.0
STATE = np.linspace(-1, 1, 6, dtype=np.float32)


class OwnDoor:
    """A door without a socket."""

    address = 'test'

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]) -> None:
        self.gateway, self.exposure, self.settings = gateway, exposure, settings
        self.loop = asyncio.get_running_loop()
        self.is_stopped = False

    async def start(self) -> None:
        """Listen to nobody."""

    async def stop(self) -> None:
        self.is_stopped = True


class RunningGateway:
    """The node in a runtime of its own. Used by the test's thread."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        words = [word for k, v in parameters.items() for word in ('-p', f'{k}:={v}')]
        self.runtime = NodeRuntime(['--ros-args', *words] if words else [])
        try:
            self.node = gateway_node.GatewayNode(self.runtime)
            self.runtime.add(self.node)
            self.runtime.start()
        except BaseException:
            self.runtime.close()
            raise

    def close(self) -> None:
        self.runtime.close()


class GatewayNodeRig(RunningGateway):
    """Its callers are the test."""

    def __init__(self, monkeypatch: Any, **parameters: object) -> None:
        doors: list[OwnDoor] = []

        def make_door(*arguments: Any) -> OwnDoor:
            doors.append(OwnDoor(*arguments))
            return doors[-1]

        monkeypatch.setattr(gateway_node, 'load_door', lambda name: make_door)
        super().__init__(parameters)
        (self.door,) = doors
        self.gateway = self.door.gateway

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Run a coroutine in the event loop of the gateway."""
        return asyncio.run_coroutine_threadsafe(work, self.door.loop)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.submit(work).result(LIMIT_S)

    def ask(self, name: str, **changes: Any) -> Future[Prediction]:
        """Send a request of a caller as a door does."""
        return self.submit(self._ask(caller(name), **changes))

    async def _ask(self, who: Caller, **changes: Any) -> Prediction:
        session = await self.gateway.session(who)
        given = {'state': STATE, 'images': {}, **changes}
        return await session.predict(PredictionRequest(**given))

    def predict(self, name: str, **changes: Any) -> Prediction:
        return self.ask(name, **changes).result(LIMIT_S)


def caller(name: str) -> Caller:
    return Caller('http', f'127.0.0.1:{name}')
