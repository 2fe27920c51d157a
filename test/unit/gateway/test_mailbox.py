# SPDX-License-Identifier: Apache-2.0
"""One request of a caller runs; of those that wait, the newest remains."""

from __future__ import annotations

import asyncio

import pytest
from support.gateway.gateway_rig import refusal, until

from lerobot_serve.gateway.callers.caller_session import LatestOnly
from lerobot_serve.gateway.callers.predictions import Status


class Turns:
    """Requests of one caller by number; each holds its turn until the test ends it."""

    def __init__(self) -> None:
        self.mailbox = LatestOnly()
        self.began: list[int] = []
        self.ends: dict[int, asyncio.Event] = {}

    def ask(self, number: int) -> asyncio.Task[None]:
        self.ends[number] = asyncio.Event()
        return asyncio.ensure_future(self._run(number))

    async def _run(self, number: int) -> None:
        async with self.mailbox:
            self.began.append(number)
            await self.ends[number].wait()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_the_newest_waiting_request_replaces_an_older_one():
    turns = Turns()
    asked = []
    for number in range(4):
        asked.append(turns.ask(number))
        await turns.settle()
    assert turns.began == [0]
    for number in (1, 2):
        assert (await refusal(asked[number])).status is Status.SUPERSEDED
    turns.ends[0].set()
    await until(lambda: turns.began == [0, 3])
    turns.ends[3].set()
    await asked[3]
    assert not turns.mailbox.is_busy


async def test_a_waiting_caller_that_leaves_frees_its_place():
    turns = Turns()
    first, second = turns.ask(0), turns.ask(1)
    await turns.settle()
    second.cancel()
    await turns.settle()
    third = turns.ask(2)
    turns.ends[0].set()
    await first
    await until(lambda: turns.began == [0, 2])
    turns.ends[2].set()
    await third


async def test_a_turn_is_not_lost_with_a_caller_that_leaves_as_it_gets_it():
    turns = Turns()
    second = turns.ask(1)
    async with turns.mailbox:
        await turns.settle()
    # the turn is handed over, and the waiting task has not run since
    second.cancel()
    await asyncio.wait([second])
    assert not turns.began
    assert not turns.mailbox.is_busy
    third = turns.ask(2)
    await until(lambda: turns.began == [2])
    turns.ends[2].set()
    await third


@pytest.mark.parametrize('leaves', [(0, 1), (1, 0)])
async def test_two_requests_that_leave_at_once_free_the_turn(leaves):
    turns = Turns()
    asked = [turns.ask(0), turns.ask(1)]
    await turns.settle()
    # as two deadlines that pass in one turn of the loop, and a stream that ends
    for number in leaves:
        asked[number].cancel()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ends)
    assert not turns.mailbox.is_busy


async def test_a_request_takes_the_place_of_one_that_leaves_in_the_same_turn_of_the_loop():
    turns = Turns()
    turns.ask(0)
    second = turns.ask(1)
    await turns.settle()
    third = turns.ask(2)
    # cancelled before the third one waits, and run after it
    second.cancel()
    await turns.settle()
    assert second.cancelled()
    turns.ends[0].set()
    await until(lambda: turns.began == [0, 2])
    turns.ends[2].set()
    await third


async def test_a_request_that_fails_passes_its_turn_on():
    mailbox = LatestOnly()

    async def fail() -> None:
        async with mailbox:
            await asyncio.sleep(0)
            raise RuntimeError

    async def succeed() -> str:
        async with mailbox:
            return 'done'

    failing, other = asyncio.ensure_future(fail()), asyncio.ensure_future(succeed())
    assert await other == 'done'
    with pytest.raises(RuntimeError):
        await failing
    assert not mailbox.is_busy
