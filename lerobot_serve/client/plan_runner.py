# SPDX-License-Identifier: Apache-2.0
"""Plans in one event loop, with threads for what blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from lerobot_serve.client.steps import LoopSignal, Plan, run_plan, run_plan_async

T = TypeVar('T')
# service calls, encoding and sending of all sessions; each blocks for a bounded time
THREADS = 4


class PlanRunner:
    """Belongs to the loop that runs when it is made; only `signal().set` is for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, 'policy_client')
        # what ends something does not wait for those that wait for a server
        self._enders = ThreadPoolExecutor(THREADS, 'policy_client_end')

    def signal(self) -> LoopSignal:
        return LoopSignal(self._loop)

    async def run(self, plan: Plan[T]) -> T:
        return await run_plan_async(plan, self._threads)

    async def end(self, plan: Plan[None]) -> None:
        """Run a plan that closes something."""
        await run_plan_async(plan, self._enders)

    async def make(self, function: Callable[[], T], close: Callable[[T], Plan[None]]) -> T:
        """Run a function that blocks for a moment; close what it makes for a cancelled caller."""
        future = self._threads.submit(function)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            # a thread that runs goes on
            future.add_done_callback(partial(self._discard, close))
            raise

    def _discard(self, close: Callable[[T], Plan[None]], future: Future[T]) -> None:
        """Any thread."""
        if not (future.cancelled() or future.exception()):
            self._enders.submit(run_plan, close(future.result()))

    async def close(self) -> None:
        """End the threads, which run for a bounded time."""
        for threads in (self._threads, self._enders):
            await asyncio.to_thread(threads.shutdown)
