# SPDX-License-Identifier: Apache-2.0
"""Plans in one event loop, with threads for what blocks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from lerobot_serve.client.steps import LoopSignal, Plan, run_plan_async

T = TypeVar('T')
# service calls, encoding and sending of all sessions; each blocks for a bounded time
THREADS = 4


class PlanRunner:
    """Belongs to the loop that runs when it is made; only `signal().set` is for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, 'policy_client')

    def signal(self) -> LoopSignal:
        return LoopSignal(self._loop)

    async def run(self, plan: Plan[T]) -> T:
        return await run_plan_async(plan, self._threads)

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function that blocks for a moment."""
        return await self._loop.run_in_executor(self._threads, function)

    async def close(self) -> None:
        """End the threads, which run for a bounded time."""
        await asyncio.to_thread(self._threads.shutdown)
