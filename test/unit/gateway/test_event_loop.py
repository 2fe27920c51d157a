# SPDX-License-Identifier: Apache-2.0
"""The thread of the gateway: doors start or say why not, and end with it, also a hanging one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import errno
import threading

import pytest
from support.gateway.gateway_rig import CALLER, GatewayRig, request

from lerobot_serve.errors import UserError
from lerobot_serve.gateway import event_loop
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.event_loop import GatewayLoop, Running


class Door:
    """A door that does what the test says."""

    address = 'test'

    def __init__(self, refusal: str = '', *, hangs: bool = False) -> None:
        self._refusal, self._hangs = refusal, hangs
        self.stopped = 0

    async def start(self) -> None:
        if self._refusal:
            raise UserError(self._refusal)

    async def stop(self) -> None:
        self.stopped += 1
        if self._hangs:
            await asyncio.Event().wait()


async def is_draining(gateway: Gateway) -> bool:
    try:
        await gateway.session(CALLER)
    except PredictionError:
        return True
    return False


def run(make: Callable[[], Running]) -> tuple[GatewayLoop, threading.Thread]:
    loop = GatewayLoop(make, 10.0)
    thread = threading.Thread(target=loop.run)
    thread.start()
    return loop, thread


def run_rig(*doors: Door, **settings: float) -> tuple[GatewayRig, GatewayLoop, threading.Thread]:
    """Return a rig, which is built in the loop, once it runs."""
    rigs: list[GatewayRig] = []

    def make() -> Running:
        rigs.append(GatewayRig(**settings))
        return Running(rigs[0].gateway, doors)

    loop, thread = run(make)
    loop.wait_until_started()
    return rigs[0], loop, thread


def test_a_running_request_is_answered_and_its_session_closed_before_the_thread_ends():
    door = Door()
    rig, loop, thread = run_rig(door)
    assert loop.addresses == ('test',)

    async def ask(gateway: Gateway) -> str:
        rig.upstream.hold()
        prediction = (await gateway.session(CALLER)).predict(request())
        asked = asyncio.ensure_future(prediction)
        loop.request_stop()
        while not await is_draining(gateway):
            await asyncio.sleep(0)
        # the connections of its callers are still there
        assert not door.stopped
        rig.upstream.release()
        slot = (await asked).slot
        assert not door.stopped
        return slot

    asked = asyncio.run_coroutine_threadsafe(ask(rig.gateway), loop._loop)
    thread.join(10)
    assert asked.result(0) == 'prod'
    assert not thread.is_alive()
    assert door.stopped == 1
    assert not rig.upstream.open_sessions
    loop.stop()


def test_a_door_that_cannot_listen_ends_the_others_and_says_why():
    doors = [Door(), Door('port 8700 is in use')]
    loop, thread = run(lambda: Running(GatewayRig().gateway, doors))
    with pytest.raises(UserError, match='port 8700 is in use'):
        loop.wait_until_started()
    thread.join(10)
    assert not thread.is_alive()
    assert [door.stopped for door in doors] == [1, 1]


def test_what_cannot_be_built_says_why():
    def make() -> Running:
        raise UserError('no link')

    loop, thread = run(make)
    with pytest.raises(UserError, match='no link'):
        loop.wait_until_started()
    thread.join(10)


def test_a_door_that_hangs_does_not_keep_the_gateway(monkeypatch):
    monkeypatch.setattr(event_loop, 'STOP_LIMIT_S', 0.01)
    door = Door(hangs=True)
    _, loop, thread = run_rig(door)
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()
    assert door.stopped == 1


def test_idle_sessions_are_closed_while_it_runs(monkeypatch):
    monkeypatch.setattr(event_loop, 'IDLE_CHECK_S', 0.005)
    rig, loop, thread = run_rig(idle_timeout_s=10.0)

    async def wait_for_the_end() -> None:
        await rig.gateway.session(CALLER)
        rig.now_s += 10
        while rig.gateway.callers:
            await asyncio.sleep(0.001)

    asyncio.run_coroutine_threadsafe(wait_for_the_end(), loop._loop).result(10)
    assert not rig.upstream.open_sessions
    loop.stop()
    thread.join(10)


def test_a_lack_of_files_is_said_once_and_without_a_traceback(caplog):
    rig, loop, thread = run_rig()
    for _ in range(3):
        lacking = {'message': 'accept', 'exception': OSError(errno.EMFILE, 'too many')}
        loop._loop.call_soon_threadsafe(loop._loop.call_exception_handler, lacking)
    loop.stop()
    thread.join()
    assert [line for line in rig.log.lines if 'ulimit' in line] == [event_loop.NO_FILES]
    assert not caplog.records
