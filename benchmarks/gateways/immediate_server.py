# SPDX-License-Identifier: Apache-2.0
"""
A gRPC server that LeRobot's RobotClient can ask, and that has a chunk ready: what the client and
gRPC take by themselves.

    python -m benchmarks.gateways.immediate_server HOST PORT

It reads an observation as the gateway does, and has no sessions and no policy. Main thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
import sys
from typing import Any

import grpc
import numpy as np

from benchmarks.peers.peer_process import CHUNK_ROWS, JOINTS
from lerobot_serve.gateway.lerobot_async.door import joined, SERVICE
from lerobot_serve.peer_formats import safe_pickle
from lerobot_serve.peer_formats.lerobot_messages import write_data

MESSAGE_BYTES, PIECE_LIMIT_S, OBSERVATION_WAIT_S, STEP_S = 1 << 23, 10.0, 2.0, 1 / 30
ROWS = np.zeros((CHUNK_ROWS, JOINTS), np.float32)


class ImmediateServer:
    """Keeps the observations of its one client until they are asked for."""

    def __init__(self) -> None:
        self._observations: asyncio.Queue[safe_pickle.TimedObservation] = asyncio.Queue()
        self._limits = safe_pickle.Limits(pickle_bytes=MESSAGE_BYTES)

    async def agree(self, message: bytes, context: Any) -> bytes:
        return b''

    async def observe(self, pieces: AsyncIterator[bytes], context: Any) -> bytes:
        async with asyncio.timeout(PIECE_LIMIT_S):
            data = await joined(pieces, MESSAGE_BYTES)
        self._observations.put_nowait(safe_pickle.read_observation(data, self._limits))
        return b''

    async def actions(self, message: bytes, context: Any) -> bytes:
        try:
            async with asyncio.timeout(OBSERVATION_WAIT_S):
                seen = await self._observations.get()
        except TimeoutError:
            return b''
        chunk = safe_pickle.write_actions(ROWS, seen.timestamp, seen.timestep, STEP_S)
        return write_data(chunk)


async def serve(host: str, port: int) -> None:
    """Serve until a signal."""
    replies, unary = ImmediateServer(), grpc.unary_unary_rpc_method_handler
    methods = {
        'Ready': unary(replies.agree),
        'SendPolicyInstructions': unary(replies.agree),
        'SendObservations': grpc.stream_unary_rpc_method_handler(replies.observe),
        'GetActions': unary(replies.actions),
    }
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, methods)])
    server.add_insecure_port(f'{host}:{port}')
    await server.start()
    await server.wait_for_termination()


if __name__ == '__main__':
    asyncio.run(serve(sys.argv[1], int(sys.argv[2])))
