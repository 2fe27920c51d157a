# SPDX-License-Identifier: Apache-2.0
"""The door for LeRobot's RobotClient: its service behind a gRPC server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
import time
from typing import Any

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.grpc_server.server import door_calls, GrpcServer
from lerobot_serve.gateway.lerobot_async.service import AsyncInference
from lerobot_serve.gateway.lerobot_async.settings import LeRobotSettings, read_settings

# GetActions, SendObservations and one that is about to end, for each client
CALLS_PER_CLIENT = 3


class LeRobotDoor(GrpcServer):
    """A Door. The event loop owns it."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        settings: LeRobotSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.service = AsyncInference(gateway, exposure, settings, clock=clock)
        super().__init__(
            exposure,
            [self.service.handlers],
            calls=door_calls(gateway, exposure.door, CALLS_PER_CLIENT),
            max_connections=settings.max_connections,
        )


def make_door(gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]) -> LeRobotDoor:
    """Return the door. Raises UserError for a mapping that cannot be read."""
    return LeRobotDoor(gateway, exposure, read_settings(settings))
