# SPDX-License-Identifier: Apache-2.0
"""The door PolicyService over the fake upstream in a thread, for clients that block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
import threading
from typing import Any, TypeVar

from lerobot_serve.gateway.fake_upstream import FakeUpstream
from support.gateway.policy_service_rig import PolicyServiceRig

T = TypeVar('T')
LIMIT_S = 20.0


class DoorThread:
    """Used by the test's thread; everything of the rig runs in the loop of its own."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name='door')
        self._thread.start()
        self.rig: PolicyServiceRig = self.run(self._start(given, settings))

    async def _start(self, given: Any, settings: Any) -> PolicyServiceRig:
        rig = PolicyServiceRig(*given, **settings)
        await rig.door.start()
        return rig

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine in the loop."""
        done: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(LIMIT_S)

    def do(self, function: Callable[[], T]) -> T:
        """Return the result of a function in the loop."""

        async def work() -> T:
            return function()

        return self.run(work())

    @property
    def address(self) -> str:
        return self.rig.door.address

    @property
    def upstream(self) -> FakeUpstream:
        return self.rig.upstream

    @property
    def callers(self) -> list[str]:
        """The client ids with a session."""
        return [caller.client_id for caller in self.rig.gateway.callers]

    def close(self) -> None:
        """End the door and the thread. May be called twice."""
        if self._loop.is_closed():
            return
        self.run(self.rig.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LIMIT_S)
        self._loop.close()
