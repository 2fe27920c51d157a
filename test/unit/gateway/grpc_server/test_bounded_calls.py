# SPDX-License-Identifier: Apache-2.0
"""Calls of the doors that speak gRPC: bounded in number and rest, counted, said once."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc
from grpc_health.v1.health_pb2 import HealthCheckResponse
import pytest
from support.gateway.policy_service_rig import observation, policy_service_rig
from support.gateway.robot_client_rig import robot_client_rig, soon

from lerobot_serve.contract.services.policy_service import Action
from lerobot_serve.gateway.callers.predictions import PredictionError
from lerobot_serve.gateway.core import GIVES_WAY_S
from lerobot_serve.gateway.grpc_server import bounded
from lerobot_serve.gateway.grpc_server.calls import Calls, CallSettings
from lerobot_serve.gateway.policy_service.door import PolicyServiceDoor

pytestmark = pytest.mark.usefixtures('grpc_thread')


async def code_of(call: Any) -> str:
    return str((await call.code()).name)


async def test_idle_streams_end_with_a_sentence_and_free_their_places():
    async with policy_service_rig(idle_timeout_s=0.05) as rig:
        channel = rig.channel()
        streams = [rig.stream(channel) for _ in range(5)]
        for stream in streams:
            assert await code_of(stream) == 'UNAVAILABLE'
            text = 'the stream was idle for 0.05 s and has ended; open it again'
            assert await stream.details() == text
        assert rig.refused == {'idle': 5}
        # who rests does nothing wrong
        assert rig.log.lines == []


async def test_streams_of_one_address_leave_places_for_others():
    async with policy_service_rig(max_callers=1) as rig:
        channel = rig.channel()
        kept = [rig.stream(channel) for _ in range(9)]
        for stream in kept:
            await stream.initial_metadata()
        for _ in range(2):
            refused = rig.stream(channel)
            assert await code_of(refused) == 'RESOURCE_EXHAUSTED'
            assert '9 calls of 127.0.0.1 run, 9 are allowed' in await refused.details()
        assert rig.refused == {'max_calls_of_address': 2}
        assert sum('allowed to one address' in line for line in rig.log.lines) == 1
        await kept[0].done_writing()
        assert await code_of(kept[0]) == 'OK'
        assert (await rig.predict(channel, observation())).chunk_steps == 4


async def test_a_stream_is_not_idle_while_its_observation_is_predicted():
    async with policy_service_rig(idle_timeout_s=0.05) as rig:
        rig.upstream.hold()
        stream = rig.stream(rig.channel())
        await stream.write(observation(step_index=3))
        await soon(lambda: rig.upstream.requests)
        other = rig.stream(rig.channel())
        assert await code_of(other) == 'UNAVAILABLE'
        rig.upstream.release()
        assert Action.FromString(await stream.read()).step_index == 3
        assert await code_of(stream) == 'UNAVAILABLE'
        await soon(lambda: not rig.gateway.callers)


class WatchedContext:
    """Notes whether the call rests while its first metadata are sent."""

    def __init__(self, context: Any, call: Any, rested: list[bool]) -> None:
        self._context, self._call, self._rested = context, call, rested

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def send_initial_metadata(self, note: Any) -> None:
        self._rested.append(not self._call._working)
        await self._context.send_initial_metadata(note)


async def test_a_stream_is_not_cut_while_its_note_is_sent(monkeypatch):
    rested: list[bool] = []
    predict_stream = PolicyServiceDoor.predict_stream

    async def watched(door: PolicyServiceDoor, messages: Any, context: Any) -> None:
        seen = WatchedContext(context, messages.call, rested)
        await predict_stream(door, messages, seen)

    monkeypatch.setattr(PolicyServiceDoor, 'predict_stream', watched)
    async with policy_service_rig(idle_timeout_s=0.05) as rig:
        assert await code_of(rig.stream(rig.channel())) == 'UNAVAILABLE'
    assert rested == [False]


async def nothing():
    """Yield no message until the call ends."""
    await asyncio.Event().wait()
    yield b''


@pytest.mark.parametrize(
    'method', ['/rl.policy.v1.PolicyService/Predict', '/grpc.health.v1.Health/Check']
)
async def test_a_call_without_a_message_ends(method, monkeypatch):
    monkeypatch.setattr(bounded, '_only_message', lambda m, call, _: ONLY_MESSAGE(m, call, 0.05))
    async with policy_service_rig() as rig:
        call = rig.channel().stream_unary(method)(nothing())
        assert await code_of(call) == 'UNAVAILABLE'
        assert 'no message of the call came within 0.05 s' in await call.details()
        assert rig.refused == {'idle': 1}
        empty = rig.channel().stream_unary(method)(iter(()))
        assert await code_of(empty) == 'INVALID_ARGUMENT'


ONLY_MESSAGE = bounded._only_message


async def test_a_robot_client_without_a_message_holds_no_place():
    async with robot_client_rig(max_callers=1) as rig:
        client = rig.client()
        method = client.channel.stream_unary('/transport.AsyncInference/GetActions')
        calls = [method(nothing()) for _ in range(9)]
        codes = list(asyncio.as_completed([code_of(c) for c in calls]))
        # 11 places, 8 of them for one address
        assert await codes[0] == 'RESOURCE_EXHAUSTED'
        assert rig.refused == {'max_calls_of_address': 1}
        for call in calls:
            call.cancel()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            await asyncio.gather(*codes[1:])


WATCH, CHECK = (f'/grpc.health.v1.Health/{name}' for name in ('Watch', 'Check'))


async def test_watches_of_health_keep_out_neither_probes_nor_callers():
    async with policy_service_rig(max_callers=1) as rig:
        greedy, channel = rig.channel(), rig.channel()
        watches = [greedy.unary_stream(WATCH)(b'') for _ in range(20)]
        # of 8 places, 6 are for one address
        await soon(lambda: rig.refused == {'gave_way': 14})
        for _ in range(8):
            assert await channel.unary_unary(CHECK)(b'') == SERVING
        assert (await rig.predict(channel, observation())).chunk_steps == 4
        assert rig.refused == {'gave_way': 15}
        for each in watches:
            each.cancel()


SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString()


class CallsRig:
    """Calls on a clock of the test, without gRPC."""

    def __init__(self, max_calls: int) -> None:
        self.now_s, self.refused = 100.0, []
        self.calls = Calls(
            CallSettings(max_calls, idle_timeout_s=1000.0),
            lambda *why: self.refused.append(why[:2]),
            clock=lambda: self.now_s,
        )
        self.ended: dict[str, str] = {}
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self, name: str, address: str, *, works: bool = False) -> None:
        """Run a call until it is ended. Raises its refusal."""
        begun = asyncio.get_running_loop().create_future()
        self.tasks.append(asyncio.create_task(self._run(name, address, works, begun)))
        await begun

    async def _run(
        self, name: str, address: str, works: bool, begun: asyncio.Future[None]
    ) -> None:
        call = None
        try:
            async with asyncio.timeout(None) as timeout:
                with self.calls.running(address, timeout) as call:
                    call.rest(1000.0)
                    begun.set_result(None)
                    with call.working() if works else contextlib.nullcontext():
                        await asyncio.Event().wait()
        except PredictionError as error:
            begun.set_exception(error)
        except TimeoutError:
            assert call
            self.ended[name] = call.text

    async def __aenter__(self) -> CallsRig:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        assert len(self.calls) == 0


async def test_one_address_leaves_places_for_others():
    async with CallsRig(8) as rig:
        for number in range(6):
            await rig.begin(f'greedy {number}', '10.0.0.1')
        with pytest.raises(PredictionError, match=r'6 calls of 10\.0\.0\.1 run, 6 are'):
            await rig.begin('greedy 6', '10.0.0.1')
        await rig.begin('other 1', '10.0.0.2')
        await rig.begin('other 2', '10.0.0.3')
        with pytest.raises(PredictionError, match='8 calls run, no more are allowed'):
            await rig.begin('other 3', '10.0.0.4')
        assert rig.refused == [('max_calls_of_address', '10.0.0.1'), ('max_calls', '10.0.0.4')]
        assert not rig.ended


async def test_where_all_places_of_an_address_are_taken_its_own_call_gives_way():
    async with CallsRig(5) as rig:
        await rig.begin('other', '10.0.0.2')
        for name in ('first', 'second', 'third'):
            await rig.begin(name, '10.0.0.1')
        rig.now_s += GIVES_WAY_S
        await rig.begin('new', '10.0.0.1')
        await asyncio.gather(rig.tasks[1])
        assert rig.ended == {
            'first': 'all 3 places for calls of 10.0.0.1 were taken, and this one sent nothing '
            'for 10 s; call again'
        }


async def test_where_all_places_are_taken_the_call_that_rests_longest_gives_way():
    async with CallsRig(4) as rig:
        await rig.begin('busy', '10.0.0.1', works=True)
        await rig.begin('first', '10.0.0.2')
        rig.now_s += GIVES_WAY_S / 2
        await rig.begin('second', '10.0.0.3')
        await rig.begin('third', '10.0.0.3')
        rig.now_s += GIVES_WAY_S / 2
        await rig.begin('new', '10.0.0.4')
        await asyncio.gather(rig.tasks[1])
        assert rig.ended == {
            'first': 'all 4 places for calls were taken, and this one sent nothing for 10 s; '
            'call again'
        }
        with pytest.raises(PredictionError, match='4 calls run'):
            await rig.begin('newer', '10.0.0.4')
