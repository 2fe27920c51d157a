# SPDX-License-Identifier: Apache-2.0
"""One request of a caller runs; of those that wait, the newest remains."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from support.gateway.gateway_rig import in_loop

from lerobot_serve.gateway.callers.caller_session import LatestOnly
from lerobot_serve.gateway.callers.predictions import PredictionError, Status

STEPS = st.sampled_from(['ask', 'ask', 'cancel', 'fail', 'settle'])


class Requests:
    """Requests of one caller; each holds its turn until the test ends it with an error."""

    def __init__(self) -> None:
        self.mailbox = LatestOnly()
        self.running: list[asyncio.Event] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        async with self.mailbox:
            mine = asyncio.Event()
            self.running.append(mine)
            try:
                await mine.wait()
                raise RuntimeError
            finally:
                self.running.remove(mine)

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)
        left = [task for task in self.tasks if not task.done()]
        # nobody waits for a free turn
        assert len(self.running) == min(1, len(left))
        assert len(left) <= 2
        assert len(self.mailbox._turns.all) == len(left)

    async def play(self, script: list[tuple[str, int]]) -> None:
        for step, index in script:
            if step == 'ask':
                self.tasks.append(asyncio.ensure_future(self.run()))
            elif step == 'cancel' and self.tasks:
                self.tasks[-1 - index % len(self.tasks)].cancel()
            elif step == 'fail' and self.running:
                self.running[0].set()
            elif step == 'settle':
                await self.settle()
        await self.settle()
        while self.running:
            self.running[0].set()
            await self.settle()
        ends = await asyncio.gather(*self.tasks, return_exceptions=True)
        ways = {RuntimeError, asyncio.CancelledError, PredictionError}
        assert {type(end) for end in ends} <= ways
        replaced = [end for end in ends if isinstance(end, PredictionError)]
        assert all(end.status is Status.SUPERSEDED for end in replaced)
        # never the newest one
        assert not replaced or ends[-1] not in replaced


@given(st.lists(st.tuples(STEPS, st.integers(0, 2)), min_size=10, max_size=25))
def test_turns_pass_on_whoever_asks_fails_or_leaves_in_the_same_turn_of_the_loop(script):
    in_loop(lambda: Requests().play(script))
