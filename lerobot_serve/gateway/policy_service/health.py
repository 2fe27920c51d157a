# SPDX-License-Identifier: Apache-2.0
"""
Health of gRPC: SERVING while a policy is served. The event loop owns it.

Orchestrators ask by grpc.health.v1.Health/Check, such as a probe of Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib

from grpc_health.v1 import health, health_pb2

from lerobot_serve.contract.services.policy_service import SERVICE
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Gateway

PERIOD_S = 1.0
STATUSES = health_pb2.HealthCheckResponse


class Health:
    """Asks the gateway once a period."""

    def __init__(self, gateway: Gateway, *, period_s: float = PERIOD_S) -> None:
        self.servicer = health.aio.HealthServicer()
        self._gateway, self._period_s = gateway, period_s
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Set the first status, and follow it from then on."""
        await self._update()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            await self._update()

    async def _update(self) -> None:
        try:
            await self._gateway.describe()
            status = STATUSES.SERVING
        except PredictionError:
            status = STATUSES.NOT_SERVING
        for service in ('', SERVICE):
            await self.servicer.set(service, status)

    async def stop(self) -> None:
        """Say NOT_SERVING. May be called twice."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await self.servicer.enter_graceful_shutdown()
