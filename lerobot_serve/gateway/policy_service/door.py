# SPDX-License-Identifier: Apache-2.0
"""The door PolicyService: the service, reflection and health behind one gRPC server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from lerobot_serve.contract.services.policy_service import POOL, SERVICE
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.mapping import EQUAL_NAMES, NameMapping, read_mapping
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.grpc_server.server import CONNECTIONS, door_calls, GrpcServer
from lerobot_serve.gateway.policy_service.health import Health
from lerobot_serve.gateway.policy_service.service import PolicyService

# one message holds all images of an observation
MESSAGE_BYTES, MB = 32_000_000, 10**6
CALLS_PER_CALLER = 4


class HandlerList:
    """Collects what the generated functions of grpc add to a server."""

    def __init__(self) -> None:
        self.found: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self.found.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same methods again, which grpc.aio does not use."""


class PolicyServiceDoor(GrpcServer):
    """A Door. The event loop owns it."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        mapping: NameMapping = EQUAL_NAMES,
        *,
        message_bytes: int = MESSAGE_BYTES,
        max_connections: int = CONNECTIONS,
    ) -> None:
        """`message_bytes` bounds an observation; gRPC refuses a larger one by its length."""
        self._health = Health(gateway)
        others = HandlerList()
        health_pb2_grpc.add_HealthServicer_to_server(self._health.servicer, others)
        names = (SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
        servicer = reflection.aio.ReflectionServicer(names, pool=POOL)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, others)
        self._service = PolicyService(gateway, exposure, mapping)
        super().__init__(
            exposure,
            [self._service.handlers],
            open_handlers=others.found,
            calls=door_calls(gateway, exposure.door, CALLS_PER_CALLER),
            message_bytes=message_bytes,
            max_connections=max_connections,
        )

    async def start(self) -> None:
        """Listen. Raises UserError."""
        await super().start()
        await self._health.start()

    async def stop(self) -> None:
        """End the connections. May be called twice."""
        await self._health.stop()
        await super().stop()
        self._service.close()


def make_door(
    gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]
) -> PolicyServiceDoor:
    """Return the door. Raises UserError for a mapping that cannot be read."""
    mapping, message_bytes = read_mapping(settings['mapping']), MB * settings['max_message_mb']
    return PolicyServiceDoor(
        gateway,
        exposure,
        mapping,
        message_bytes=message_bytes,
        max_connections=settings['max_connections'],
    )
