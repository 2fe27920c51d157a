# SPDX-License-Identifier: Apache-2.0
"""
openpi's client over its websocket format, and a server for it, each a process of its own.

    python -m benchmarks.peers.openpi server HOST PORT
    python -m benchmarks.peers.openpi client|robots HOST PORT SOCKET

Client and format come from the package openpi_client. Its server is in no package; the one here
is written to what that client expects: metadata at once, then an answer to each observation, not
compressed and of any size. Main thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import time
from typing import Any

import numpy as np

from benchmarks.peers.paced_robots import background_event_loop, orders, SendRequest
from benchmarks.peers.peer_process import (
    Address,
    CHUNK_ROWS,
    Frames,
    JOINTS,
    Orders,
    run,
    single_robot,
    Trip,
    wait_until_listening,
)

PACKAGES = ('openpi-client', 'websockets', 'msgpack')
METADATA = {'policy': 'null'}
STATE = 'observation/state'
WRONG = 'no chunk'
RAMP = np.linspace(0, 0.01, CHUNK_ROWS, dtype=np.float32)[:, None]
Pack = Callable[[Any], bytes]
Unpack = Callable[[bytes], Any]


def observation(frames: Frames) -> dict[str, object]:
    """Return what a robot sends."""
    pictures = {f'observation/{name}': frame for name, frame in frames.items()}
    return {**pictures, STATE: np.zeros(JOINTS, np.float32), 'prompt': ''}


def chunk_for(asked: dict[str, np.ndarray]) -> dict[str, object]:
    """Return what a null policy answers; the time is what openpi's server adds."""
    return {'actions': asked[STATE] + RAMP, 'server_timing': {'infer_ms': 0.0}}


async def attend(connection: Any, pack: Pack, unpack: Unpack) -> None:
    """Serve one client until it hangs up."""
    await connection.send(pack(METADATA))
    async for raw in connection:
        await connection.send(pack(chunk_for(unpack(raw))))


def serve(address: Address) -> None:
    """Serve until a signal."""
    asyncio.run(listen(address))


async def listen(address: Address) -> None:
    # of the peer's folder: no requirements of this package
    from openpi_client import msgpack_numpy
    from websockets.asyncio import server

    async def attend_one(connection: server.ServerConnection) -> None:
        await attend(connection, msgpack_numpy.Packer().pack, msgpack_numpy.unpackb)

    async with server.serve(
        attend_one, address.host, address.port, compression=None, max_size=None
    ) as serving:
        await serving.serve_forever()


def connect(address: Address) -> Trip:
    """Return what makes one trip. Raises OSError when the server does not come up."""
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    # itself it would look again only after 5 s
    wait_until_listening(address)
    policy = WebsocketClientPolicy(address.host, address.port)

    def trip(frames: Frames) -> float | str:
        begin_ns = time.perf_counter_ns()
        answer = policy.infer(observation(frames))
        return outcome(answer, begin_ns)

    return trip


def outcome(answer: dict[str, object], begin_ns: int) -> float | str:
    """Return how long it took to a chunk of the right shape [ms]."""
    took_ms = (time.perf_counter_ns() - begin_ns) / 1e6
    return took_ms if answer['actions'].shape == (CHUNK_ROWS, JOINTS) else WRONG


def robots(address: Address) -> Orders:
    """Return the role of many robots; each sends a request that was packed beforehand."""
    from openpi_client import msgpack_numpy
    from websockets.asyncio.client import connect as connect_to

    wait_until_listening(address)

    async def open_robot(number: int, frames: Frames) -> SendRequest:
        uri = f'ws://{address.host}:{address.port}'
        connection = await connect_to(uri, compression=None, max_size=None)
        # its metadata
        await connection.recv()
        raw = msgpack_numpy.packb(observation(frames))

        async def ask() -> float | str:
            begin_ns = time.perf_counter_ns()
            await connection.send(raw)
            return outcome(msgpack_numpy.unpackb(await connection.recv()), begin_ns)

        return ask

    return orders(open_robot, background_event_loop())


if __name__ == '__main__':
    raise SystemExit(run(PACKAGES, serve, {'client': single_robot(connect), 'robots': robots}))
