# SPDX-License-Identifier: Apache-2.0
"""The door PolicyService over the fake upstream, and its callers."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc
import numpy as np

from lerobot_serve.contract.services.policy_service import Action, Image, Observation, SERVICE
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.policy_service.door import PolicyServiceDoor
from support.gateway.gateway_rig import DoorRig, grpc_channel

LIMIT_S = 60.0
HEIGHT, WIDTH = 48, 64
EXPOSURE = Exposure('policy_service')


def observation(**changes: Any) -> bytes:
    """Return an observation that fits the example contract."""
    frame = np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
    image = Image(name='front', data=frame.tobytes(), height=HEIGHT, width=WIDTH)
    given = {'features': [0.0, 0.5, 1.0], 'images': [image], **changes}
    return Observation(**given).SerializeToString()


class PolicyServiceRig(DoorRig):
    """Build it in the event loop."""

    def __init__(
        self,
        exposure: Exposure = EXPOSURE,
        *,
        max_message_mb: float = 32.0,
        **settings: Any,
    ) -> None:
        super().__init__(**{'max_callers': 4, **settings})
        given = EndpointSettings(max_message_mb=max_message_mb)
        self.door = PolicyServiceDoor(self.gateway, exposure, given)
        self._channels: list[grpc.aio.Channel] = []

    def channel(self, certificate: bytes = b'') -> grpc.aio.Channel:
        """Return a connection of its own."""
        self._channels.append(grpc_channel(self.door.address, certificate))
        return self._channels[-1]

    def call(self, channel: grpc.aio.Channel, data: bytes, **given: Any) -> Any:
        method = channel.unary_unary(f'/{SERVICE}/Predict')
        return method(data, **{'timeout': LIMIT_S, **given})

    async def predict(self, channel: grpc.aio.Channel, data: bytes, **given: Any) -> Action:
        return Action.FromString(await self.call(channel, data, **given))

    def stream(self, channel: grpc.aio.Channel, **given: Any) -> Any:
        return channel.stream_stream(f'/{SERVICE}/PredictStream')(**given)

    async def refusal(self, call: Any) -> tuple[str, str]:
        try:
            answer = await call
        except grpc.aio.AioRpcError as error:
            return error.code().name, error.details() or ''
        raise AssertionError(f'answered with {answer!r}')

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await super().close()


def policy_service_rig(
    *given: Any, **settings: Any
) -> AbstractAsyncContextManager[PolicyServiceRig]:
    return PolicyServiceRig(*given, **settings).running()
