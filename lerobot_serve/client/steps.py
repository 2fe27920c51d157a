# SPDX-License-Identifier: Apache-2.0
"""
Calls of the client as plans: generators that yield what must block, so that the same code runs in
threads and in an event loop. A plan never waits itself; what it leaves behind is undone in its
`finally`, also when its caller is interrupted or cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future, ThreadPoolExecutor
import contextlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self, TypeVar

from lerobot_serve.local.signal import Signal

T = TypeVar('T')
# service calls, encoding and sending of all sessions; each blocks for a bounded time
THREADS = 4


class Waker(Protocol):
    """A signal that a plan waits for; any thread sets it, the driver of the plan waits."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Blocking:
    """Run a function that blocks for a bounded time; the plan gets its result or exception."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait until a signal is set, at most `timeout_s`."""

    signal: Waker
    timeout_s: float


Step = Blocking | Pause
Plan = Generator[Step, Any, T]


def run_plan(plan: Plan[T]) -> T:
    """Run a plan in the calling thread; its signals are Signal."""

    async def perform(step: Step) -> Any:
        if isinstance(step, Blocking):
            return step.function()
        assert isinstance(step.signal, Signal)
        return step.signal.wait(step.timeout_s)

    driving = _drive(plan, perform)
    try:
        # to its end: `perform` never awaits
        driving.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError('a plan in a thread has no loop to wait for')


async def run_plan_async(plan: Plan[T], executor: ThreadPoolExecutor) -> T:
    """Run a plan in the event loop, what blocks in `executor`; its signals are LoopSignal."""
    loop = asyncio.get_running_loop()

    async def perform(step: Step) -> Any:
        if isinstance(step, Blocking):
            return await loop.run_in_executor(executor, step.function)
        assert isinstance(step.signal, LoopSignal)
        return await step.signal.wait(step.timeout_s)

    return await _drive(plan, perform)


async def _drive(plan: Plan[T], perform: Callable[[Step], Coroutine[Any, Any, Any]]) -> T:
    """Give a plan the result or the exception of each of its steps; return its own."""
    with contextlib.closing(plan):
        resume: Callable[[], Step] = partial(plan.send, None)
        while True:
            try:
                step = resume()
            except StopIteration as end:
                value: T = end.value
                return value
            try:
                resume = partial(plan.send, await perform(step))
            except Exception as raised:
                resume = partial(plan.throw, raised)


class LoopSignal:
    """A signal of an event loop; any thread sets it, also after the loop has ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._event = loop, asyncio.Event()

    def set(self) -> None:
        # a reply may arrive when nobody waits any more
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """The thread of the loop."""
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Return whether it was set within the timeout. The thread of the loop."""
        try:
            await asyncio.wait_for(self._event.wait(), timeout_s)
        except TimeoutError:
            return False
        return True


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
            # a thread that runs continues
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


class Closing:
    """What a `with` closes."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClosing:
    """What an `async with` closes."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
