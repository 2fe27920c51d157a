# SPDX-License-Identifier: Apache-2.0
"""Predictions for the newest observation in an event loop. The loop that opened the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lerobot_serve.client.errors import ClientClosed
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import AsyncClosing, PlanRunner
from lerobot_serve.client.streams.stream import Stream


class AsyncPredictionStream(Stream, AsyncClosing, AsyncIterator[Prediction]):
    """As PredictionStream, with a task in place of the thread; use it in an `async with`."""

    def __init__(
        self, plans: SessionPlans, check: ObservationCheck, runner: PlanRunner, timeout_s: float
    ) -> None:
        super().__init__(plans, check, runner.signal, runner.signal(), timeout_s)
        self._runner = runner
        self._worker = asyncio.get_running_loop().create_task(runner.run(self._requesting()))

    async def __anext__(self) -> Prediction:
        """Wait for the next prediction. Raises the error of a request; the stream continues."""
        try:
            return await self._runner.run(self._next_result())
        except ClientClosed:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """End the task; a request in flight is given up."""
        self._end()
        self._worker.cancel()
        await asyncio.wait([self._worker])
