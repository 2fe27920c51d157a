# SPDX-License-Identifier: Apache-2.0
"""
The door for LeRobot's RobotClient over the fake upstream, and clients that make its calls: the
same bytes, without LeRobot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import numpy as np
import pytest

from benchmarks.harness.peer_classes import (
    features,
    pickled,
    RemotePolicyConfig,
    TimedAction,
    TimedObservation,
    unpickled,
)
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.mapping import EQUAL_NAMES, NameMapping
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.lerobot_async import door
from lerobot_serve.peer_formats import lerobot_messages as protobuf
from support.gateway.gateway_rig import DoorRig, grpc_channel
from support.replacing import replace

JOINTS = ('joint_1.pos', 'joint_2.pos', 'gripper.pos')
SHAPE = (48, 64, 3)
LIMIT_S = 60.0
PIECE_BYTES = 2 * 2**20
EXPOSURE = Exposure('lerobot')


def instructions(**changes: Any) -> RemotePolicyConfig:
    """Return what a robot that fits the example contract asks for."""
    named = features(JOINTS, {'front': SHAPE})
    return replace(RemotePolicyConfig('act', 'fake', named, 4), **changes)


def observation(timestep: int = 0, *, must_go: bool = True, **values: Any) -> TimedObservation:
    joints = {name: 0.5 * number for number, name in enumerate(JOINTS)}
    frame = np.zeros(SHAPE, np.uint8)
    seen = {**joints, 'front': frame, 'task': 'pick', **values}
    return TimedObservation(100.0 + timestep, timestep, seen, must_go)


def message(number: int, data: bytes) -> bytes:
    """Return a protobuf message with one field of bytes."""
    return protobuf.varint(number << 3 | 2) + protobuf.varint(len(data)) + data


def pieces(data: bytes, size: int = PIECE_BYTES) -> list[bytes]:
    """Return the messages of send_bytes_in_chunks."""
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    states = [protobuf.TransferState.MIDDLE] * len(parts)
    states[0], states[-1] = protobuf.TransferState.BEGIN, protobuf.TransferState.END
    return [piece(state, part) for state, part in zip(states, parts, strict=True)]


def piece(state: int, data: bytes) -> bytes:
    return b'\x08' + protobuf.varint(state) + message(2, data)


class StubClient:
    """A connection of its own, as a RobotClient in a process of its own has."""

    def __init__(self, address: str, token: str = '', certificate: bytes = b'') -> None:
        self.channel = grpc_channel(address, certificate)
        self.metadata = (('authorization', f'Bearer {token}'),) if token else ()

    def call(self, method: str, data: bytes = b'') -> Any:
        made = self.channel.unary_unary(f'/transport.AsyncInference/{method}')
        return made(data, timeout=LIMIT_S, metadata=self.metadata)

    async def start(self, asked: RemotePolicyConfig | None = None) -> None:
        await self.call('Ready')
        await self.instruct(pickled(asked or instructions()))

    async def instruct(self, data: bytes) -> bytes:
        return await self.call('SendPolicyInstructions', message(1, data))

    async def send(self, seen: TimedObservation) -> bytes:
        return await self.send_pieces(pieces(pickled(seen)))

    def send_pieces(self, messages: Iterable[bytes] | AsyncIterator[bytes]) -> Any:
        made = self.channel.stream_unary('/transport.AsyncInference/SendObservations')
        return made(messages, timeout=LIMIT_S, metadata=self.metadata)

    def actions_call(self) -> Any:
        return self.call('GetActions')

    async def actions(self) -> list[TimedAction]:
        """Return the chunk; empty where the door has none."""
        return read_reply(await self.actions_call())

    async def chunk(self, seen: TimedObservation) -> list[TimedAction]:
        """Send an observation and return its chunk."""
        await self.send(seen)
        return await self.actions()

    async def refused(self, work: Any) -> tuple[grpc.StatusCode, str]:
        """Return the status and text of a call that must fail."""
        try:
            answer = await work
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ''
        raise AssertionError(f'answered with {answer!r}')


async def soon(holds: Callable[[], object]) -> None:
    """Wait for a condition; a loop that never rests starves the thread of grpc."""
    while not holds():
        await asyncio.sleep(0.002)


def read_reply(reply: bytes) -> list[TimedAction]:
    return unpickled(bytes(protobuf.read_data(reply))) if reply else []


class RobotClientRig(DoorRig):
    """The door and its clients. Build it in the event loop."""

    def __init__(
        self,
        exposure: Exposure = EXPOSURE,
        *,
        mapping: NameMapping = EQUAL_NAMES,
        max_callers: int = 4,
        wait_s: float = 5.0,
        **settings: Any,
    ) -> None:
        super().__init__(max_callers=max_callers)
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(door, 'OBSERVATION_WAIT_S', wait_s)
        self._patch.setattr(door, 'REFUSAL_PAUSE_S', 0.0)
        self.door = door.LeRobotDoor(
            self.gateway, exposure, EndpointSettings(**settings), clock=lambda: self.now_s
        )
        self.door._mapping = mapping
        self._clients: list[StubClient] = []

    def client(self, **given: Any) -> StubClient:
        self._clients.append(StubClient(self.door.address, **given))
        return self._clients[-1]

    async def started(self, asked: RemotePolicyConfig | None = None) -> StubClient:
        client = self.client()
        await client.start(asked)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.channel.close()
        await super().close()
        self._patch.undo()


def robot_client_rig(*given: Any, **settings: Any) -> AbstractAsyncContextManager[RobotClientRig]:
    return RobotClientRig(*given, **settings).running()


@asynccontextmanager
async def started_client(**settings: Any) -> AsyncIterator[tuple[RobotClientRig, StubClient]]:
    """A door, and a client that it serves."""
    async with robot_client_rig(**settings) as rig:
        yield rig, await rig.started()
