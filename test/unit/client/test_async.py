# SPDX-License-Identifier: Apache-2.0
"""Plans, and the client of an event loop: many sessions, cancelled calls, streams."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
import threading
from typing import Any

import numpy as np
import pytest
from support.gateway.gateway_rig import until
from support.replacing import replace

from lerobot_serve.client import (
    AsyncPolicyClient,
    ClientClosed,
    ServerUnavailable,
    Superseded,
    TooLate,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.fake_server import CAMERAS, FakeServer
from lerobot_serve.client.steps import Blocking, Pause, PlanRunner, run_plan, THREADS
from lerobot_serve.local.signal import Signal

IMAGES = {CAMERAS[0].name: np.zeros((4, 6, 3), np.uint8)}
LIMIT_S = 20.0


@asynccontextmanager
async def connected(server: FakeServer):
    async with AsyncPolicyClient(server.connection(), PlanRunner()) as client:
        yield client


@asynccontextmanager
async def asked(server: FakeServer):
    """A session whose server holds what it is asked."""
    async with connected(server) as client, await client.open() as session:
        server.holds = True
        yield session


async def test_sessions_of_one_loop_are_served_side_by_side(server):
    async with connected(server) as client:
        sessions = [await client.open() for _ in range(5)]
        server.holds = True
        tasks = [
            asyncio.create_task(each.predict((n, n), IMAGES)) for n, each in enumerate(sessions)
        ]
        await until(lambda: len(server.held) == 5)
        while server.held:
            server.answer(server.held.pop())
        chunks = await asyncio.gather(*tasks)
        assert [chunk.actions[0, 0] for chunk in chunks] == list(range(5))
    assert len(server.closed) == 5


async def test_a_cancelled_call_in_flight_leaves_its_place_and_its_reply_is_counted(server):
    async with asked(server) as session:
        first = asyncio.create_task(session.predict((1, 1), IMAGES))
        await until(lambda: server.held)
        first.cancel()
        second = asyncio.create_task(session.predict((2, 2), IMAGES))
        await until(lambda: len(server.held) == 2)
        assert first.cancelled()
        server.answer()
        server.answer()
        assert (await second).actions[0, 0] == 2
        assert session.counts['dropped_late_reply'] == 1


async def test_a_cancelled_waiting_call_is_never_sent(server):
    async with asked(server) as session:
        first = asyncio.create_task(session.predict((1, 1), IMAGES))
        await until(lambda: server.held)
        second = asyncio.create_task(session.predict((2, 2), IMAGES))
        await until(lambda: session._plans.state.turns.waiting)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        server.answer()
        await first
        server.holds = False
        assert (await session.predict((3, 3), IMAGES)).sequence == 2


async def test_a_call_that_is_cancelled_as_its_reply_arrives_disturbs_nobody(server):
    """In every order of cancellation, reply and the next call."""
    async with asked(server) as session:
        for order in range(20):
            task = asyncio.create_task(session.predict((order, order), IMAGES))
            await until(lambda: server.held)
            thread = asyncio.to_thread(server.answer)
            if order % 2:
                task.cancel()
                await thread
            else:
                answered = asyncio.create_task(thread)
                await asyncio.sleep(0)
                task.cancel()
                await answered
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, asyncio.CancelledError) or len(result) == 3
        server.holds = False
        assert len(await session.predict((1, 1), IMAGES)) == 3


async def test_the_newest_of_waiting_calls_is_sent(server):
    async with asked(server) as session:
        first = asyncio.create_task(session.predict((1, 1), IMAGES))
        await until(lambda: server.held)
        others = [asyncio.create_task(session.predict((n, n), IMAGES)) for n in (2, 3, 4)]
        await until(lambda: session.counts['superseded'] == 2)
        server.answer()
        await first
        await until(lambda: server.held)
        server.answer()
        results = await asyncio.gather(*others, return_exceptions=True)
        assert [type(each) for each in results[:2]] == [Superseded, Superseded]
        assert results[2].actions[0, 0] == 4


async def test_errors_are_those_of_the_blocking_client(server):
    async with connected(server) as client:
        session = await client.open()
        with pytest.raises(WrongObservation):
            await session.predict((1, 2, 3), IMAGES)
        server.holds = True
        with pytest.raises(TooLate):
            await session.predict((1, 1), IMAGES, timeout_s=0.05)
        server.go()
        with pytest.raises(ServerUnavailable):
            await session.predict((1, 1), IMAGES, timeout_s=0.05)
        server.come_back()
        server.holds = False
        assert (await session.predict((1, 1), IMAGES)).actions[0, 0] == 1
        assert await session.begin_episode() == session.episode_id
        await session.close()
        with pytest.raises(ClientClosed):
            await session.predict((1, 1), IMAGES)


async def test_a_name_is_free_once_its_session_has_ended_at_the_server(server):
    is_asked, may_end = threading.Event(), threading.Event()
    async with connected(server) as client:
        first = await client.open()

        def close_slowly(request, _) -> None:
            is_asked.set()
            assert may_end.wait(LIMIT_S)
            server.closed.append(request)

        server.links['client/tester'].close_session = close_slowly
        closing = asyncio.create_task(first.close())
        await until(is_asked.is_set)
        second = await client.open()
        assert second.client_id == 'client/tester.2'
        may_end.set()
        await closing
        third = await client.open()
        assert third.client_id == 'client/tester'
        for session in (second, third):
            assert len(await session.predict((1, 1), IMAGES)) == 3


def test_wrong_settings_are_refused_before_anything_starts():
    with pytest.raises(WrongSettings):
        AsyncPolicyClient.connect('policy router')


async def test_a_stream_requests_the_newest_observation(server):
    async with asked(server) as session:
        async with session.stream() as stream:
            stream.put((1, 1), IMAGES)
            await until(lambda: server.held)
            for number in (2, 3, 4):
                stream.put((number, number), IMAGES)
            server.answer()
            assert (await anext(stream)).actions[0, 0] == 1
            await until(lambda: server.held)
            server.answer()
            assert (await anext(stream)).actions[0, 0] == 4
            assert stream.superseded == 2
            assert stream.latest() is None
        assert [chunk async for chunk in stream] == []


async def test_a_stream_ends_with_a_request_in_flight(server):
    async with asked(server) as session:
        async with session.stream() as stream:
            stream.put((1, 1), IMAGES)
            await until(lambda: server.held)
        server.holds = False
        assert len(await session.predict((1, 1), IMAGES)) == 3


class Slow:
    """A function of a thread that runs until it may end."""

    def __init__(self, function) -> None:
        self._function = function
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *given):
        self.has_begun.set()
        assert self.may_end.wait(LIMIT_S)
        return self._function(*given)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancelled_open_frees_the_name_that_keys_speak_for(server):
    connection = server.connection()
    connection.settings = replace(connection.settings, is_name_fixed=True)
    connection._link_of = slow = Slow(connection._link_of)
    async with AsyncPolicyClient(connection, PlanRunner()) as client:
        opening = asyncio.create_task(client.open())
        await until(slow.has_begun.is_set)
        await cancelled(opening)
        slow.may_end.set()
        name = 'client/tester'
        await until(lambda: name in connection.sessions)
        await until(lambda: connection.sessions[name].is_released)
        async with await client.open() as session:
            assert session.client_id == name


async def test_a_cancelled_connect_ends_what_it_connects(monkeypatch, server):
    slow = Slow(lambda _: server.connection())
    monkeypatch.setattr('lerobot_serve.client.async_client.make_connection', slow)
    connecting = asyncio.ensure_future(AsyncPolicyClient.connect()._connect())
    await until(slow.has_begun.is_set)
    connecting.cancel()
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    assert server.links['client/tester'].is_closed


async def test_a_session_that_a_cancelled_open_opens_is_closed(server):
    """CloseSession may come first, as at a server that loads its policy."""
    async with connected(server) as client:
        link = server.links['client/tester']
        link.open = slow = Slow(link.open)
        opening = asyncio.create_task(client.open())
        await until(slow.has_begun.is_set)
        await cancelled(opening)
        assert len(server.closed) == 1
        slow.may_end.set()
        await until(lambda: len(server.closed) == 2)
        assert server.closed[-1] is server.opened[-1]
        assert client._connection.sessions['client/tester'].state.sessions_opened == 0


@contextmanager
def busy(threads: ThreadPoolExecutor) -> Iterator[None]:
    """All threads wait, as for a server."""
    slow = Slow(lambda: None)
    waiting = [threads.submit(slow) for _ in range(THREADS)]
    yield
    slow.may_end.set()
    for each in waiting:
        each.result(LIMIT_S)


async def test_a_session_closes_while_all_threads_wait_for_a_server(server):
    async with connected(server) as client:
        session = await client.open()
        with busy(client._runner._threads):
            await session.close()
            assert len(server.closed) == 1


async def test_a_cancelled_close_is_completed_by_the_next_one(server):
    async with connected(server) as client:
        session = await client.open()
        with busy(client._runner._enders):
            closing = asyncio.create_task(session.close())
            await until(lambda: session._plans.state.machine.state.name == 'ENDED')
            await cancelled(closing)
        assert server.closed == []
        await session.close()
        assert len(server.closed) == 1
        assert session._plans.is_released


async def test_a_cancelled_close_of_a_client_is_completed_by_the_next_one(server):
    client = AsyncPolicyClient(server.connection(), PlanRunner())
    with busy(client._runner._enders):
        closing = asyncio.create_task(client.close())
        await until(lambda: client._connection.is_closed)
        await cancelled(closing)
        assert not server.links['client/tester'].is_closed
    await client.close()
    await client.close()
    assert server.links['client/tester'].is_closed


async def test_an_observation_is_that_of_the_moment_of_the_call(server):
    async with connected(server) as client:
        session = await client.open()
        buffer = np.zeros((4, 6, 3), np.uint8)
        predicting = asyncio.create_task(session.predict((1, 1), {CAMERAS[0].name: buffer}))
        await until(lambda: session._plans.state.turns.running)
        observed, _ = session._plans.state._history.rows()[0]
        assert observed.frames[CAMERAS[0].name] is not buffer
        await predicting


def test_an_interrupted_plan_cleans_up_and_ends():
    ends = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    def plan():
        try:
            yield Blocking(interrupted)
        finally:
            ends.append('cleaned up')

    with pytest.raises(KeyboardInterrupt):
        run_plan(plan())
    assert ends == ['cleaned up']


def test_a_plan_gets_results_and_errors():
    def plan():
        assert (yield Pause(Signal(), 0.0)) is False
        with pytest.raises(ZeroDivisionError):
            yield Blocking(lambda: 1 / 0)
        return (yield Blocking(lambda: 7))

    assert run_plan(plan()) == 7
