# SPDX-License-Identifier: Apache-2.0
"""
Small clients of the five protocols of a gateway, for many in one event loop: a request is packed
once and sent again and again. Each can stop reading. Event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
import contextlib
import itertools
import socket
from typing import Protocol

import grpc
import zmq
import zmq.asyncio

from benchmarks.gateways import wire_requests as requests
from benchmarks.peers.peer_process import Address, Frames
from lerobot_serve.contract.services.policy_service import Action, SERVICE
from lerobot_serve.errors import UserError
from lerobot_serve.peer_formats.lerobot_messages import observation_pieces, write_data

# small, so that a client that reads nothing is soon full
RECEIVE_BUFFER_BYTES = 4096
# a client that cannot send for so long is full
BLOCKED_S = 0.5
BINARY_FRAME, LENGTH_16, LENGTH_64 = 0x82, 126, 127
LEROBOT = '/transport.AsyncInference/'
CHANNEL_OPTIONS = (('grpc.use_local_subchannel_pool', 1),)


class WireClient(Protocol):
    """One robot. Every method raises UserError for a refusal, and OSError."""

    async def open(self) -> None: ...

    async def ask(self) -> None:
        """Send a request, and read its reply."""

    async def send(self) -> None:
        """Send a request, and read nothing; ends when there is room for it."""

    async def close(self) -> None: ...


class TcpClient:
    """What a websocket and HTTP share: a connection that keeps little of what it receives."""

    request = b''

    def __init__(self, address: Address, image: Frames) -> None:
        self._address, self._image = address, image

    async def open(self) -> None:
        link = socket.socket()
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        link.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(link, (self._address.host, self._address.port))
        self._reader, self._writer = await asyncio.open_connection(sock=link)

    async def send(self) -> None:
        transport = self._writer.transport
        if transport.is_reading():
            transport.pause_reading()
        self._writer.write(self.request)
        await self._writer.drain()

    async def close(self) -> None:
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


class OpenpiClient(TcpClient):
    """A websocket without a mask, which is a mask of zeros."""

    async def open(self) -> None:
        await super().open()
        self.request = requests.websocket_frame(requests.openpi(self._image))
        self._writer.write(requests.UPGRADE)
        head = await self._reader.readuntil(b'\r\n\r\n')
        if b' 101 ' not in head:
            raise UserError(f'openpi: {head[:200]!r}')
        # the metadata
        await self._message()

    async def ask(self) -> None:
        self._writer.write(self.request)
        await self._message()

    async def _message(self) -> None:
        code, size = await self._reader.readexactly(2)
        if size in (LENGTH_16, LENGTH_64):
            width = 2 if size == LENGTH_16 else 8
            size = int.from_bytes(await self._reader.readexactly(width), 'big')
        content = await self._reader.readexactly(size)
        if code != BINARY_FRAME:
            raise UserError(f'openpi: {content[:200]!r}')


class HttpClient(TcpClient):
    """One connection that is kept; each client is a caller of its own."""

    numbers = itertools.count()

    def __init__(self, address: Address, image: Frames) -> None:
        super().__init__(address, image)
        self.request = requests.http(image, f'client_{next(self.numbers)}')

    async def ask(self) -> None:
        self._writer.write(self.request)
        head = (await self._reader.readuntil(b'\r\n\r\n')).lower()
        size = head.partition(b'content-length:')[2].split(b'\r\n', 1)[0]
        content = await self._reader.readexactly(int(size))
        if not head.startswith(b'http/1.1 200'):
            raise UserError(f'http: {content[:200]!r}')


class GrootClient:
    """A DEALER socket, which need not read a reply before it sends again."""

    def __init__(self, address: Address, image: Frames) -> None:
        self._url = f'tcp://{address.host}:{address.port}'
        self._request = [b'', requests.groot(image)]

    async def open(self) -> None:
        self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        for option in (zmq.RCVHWM, zmq.SNDHWM):
            self._socket.setsockopt(option, 1)
        self._socket.setsockopt(zmq.RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.connect(self._url)

    async def ask(self) -> None:
        await self.send()
        reply = await self._socket.recv_multipart()
        if b'error' in reply[-1][:32]:
            raise UserError(f'groot: {reply[-1][:200]!r}')

    async def send(self) -> None:
        await self._socket.send_multipart(self._request)

    async def close(self) -> None:
        self._socket.close(linger=0)


class GrpcClient:
    """A channel of its own."""

    def __init__(self, address: Address, image: Frames) -> None:
        self._target, self._image = f'{address.host}:{address.port}', image

    async def open(self) -> None:
        self._channel = grpc.aio.insecure_channel(self._target, CHANNEL_OPTIONS)

    async def close(self) -> None:
        await self._channel.close()


class LeRobotClient(GrpcClient):
    """The four methods in the order of LeRobot's RobotClient."""

    async def open(self) -> None:
        await super().open()
        await self._call('Ready', b'')
        await self._call('SendPolicyInstructions', write_data(requests.policy_config(self._image)))
        self._observe = self._channel.stream_unary(f'{LEROBOT}SendObservations')
        self._timestep = 0

    async def ask(self) -> None:
        await self.send()
        if not await self._call('GetActions', b''):
            raise UserError('lerobot: no chunk came')

    async def send(self) -> None:
        self._timestep += 1
        pickled = requests.lerobot(self._image, self._timestep)
        await self._result(self._observe(observation_pieces(pickled)))

    async def _call(self, method: str, message: bytes) -> bytes:
        return await self._result(self._channel.unary_unary(LEROBOT + method)(message))

    async def _result(self, call: Awaitable[bytes]) -> bytes:
        """Return the reply of a method; the connection outlives a refusal. Raises UserError."""
        try:
            return await call
        except grpc.RpcError as error:
            raise UserError(f'lerobot: {error!r:.300}') from None


class PolicyServiceClient(GrpcClient):
    """A stream of observations and actions."""

    async def open(self) -> None:
        await super().open()
        self._request = requests.policy_service(self._image)
        self._stream = self._channel.stream_stream(f'/{SERVICE}/PredictStream')()

    async def ask(self) -> None:
        await self.send()
        reply = Action.FromString(await self._stream.read())
        if reply.status:
            raise UserError(f'policy_service: {reply.text}')

    async def send(self) -> None:
        await self._stream.write(self._request)

    async def close(self) -> None:
        self._stream.cancel()
        await super().close()
