# SPDX-License-Identifier: Apache-2.0
"""Predictions for the newest observation in an event loop. The loop that opened the session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Self

from lerobot_serve.client.errors import ClientClosed, PolicyClientError, unexpected_error
from lerobot_serve.client.results import Prediction
from lerobot_serve.client.session.inputs import ObservationCheck
from lerobot_serve.client.session.plans import SessionPlans
from lerobot_serve.client.steps import PlanRunner
from lerobot_serve.client.streams.latest import LatestOnly, Stream, Wanted


class AsyncPredictionStream(Stream, AsyncIterator[Prediction]):
    """As PredictionStream, with a task in place of the thread; use it in an `async with`."""

    def __init__(
        self, plans: SessionPlans, check: ObservationCheck, runner: PlanRunner, timeout_s: float
    ) -> None:
        self._plans, self._runner = plans, runner
        self._to_worker = runner.signal()
        super().__init__(check, LatestOnly(self._to_worker, runner.signal()), timeout_s)
        self._worker = asyncio.get_running_loop().create_task(self._request())

    async def __anext__(self) -> Prediction:
        """Wait for the next prediction. Raises the error of a request; the stream goes on."""
        try:
            return await self._runner.run(self._latest.next_result(self._timeout_s))
        except ClientClosed:
            raise StopAsyncIteration from None

    async def close(self) -> None:
        """End the task; a request in flight is given up."""
        self._latest.close()
        self._worker.cancel()
        await asyncio.wait([self._worker])

    async def _request(self) -> None:
        while not self._latest.is_closed:
            wanted = self._latest.take()
            if wanted:
                self._latest.finish(await self._result(wanted))
            else:
                await self._to_worker.wait(self._timeout_s)
                self._to_worker.clear()

    async def _result(self, wanted: Wanted) -> Prediction | PolicyClientError:
        timeout_s, signal = self._plans.state.settings.timeout_s, self._runner.signal()
        try:
            return await self._runner.run(
                self._plans.predict(wanted.observed, wanted.task, timeout_s, signal)
            )
        except PolicyClientError as error:
            return error
        except Exception as error:
            return unexpected_error(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
