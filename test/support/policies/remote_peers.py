# SPDX-License-Identifier: Apache-2.0
"""
Servers of other projects, small, in a thread: their wire is written after their code, and shares
none with the package. `mode` says how each behaves; the test changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
import contextlib
import io
import json
from pathlib import Path
import pickle
import ssl
import threading
from typing import Any, NamedTuple

from aiohttp import web
import grpc
import msgpack
import numpy as np
import zmq
import zmq.asyncio

from benchmarks.harness.peer_classes import pickled, TimedAction, unpickled
from support.gateway.openpi_messages import packed, unpacked

LIMIT_S = 60.0
STEPS = 4
RAMP = np.arange(STEPS, dtype=np.float64)[:, None]


def chunk_of(peer: Peer, arm: np.ndarray, gripper: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the policy of these servers predicts: each value, rising by 1 in each step."""
    chunk = {'hand': gripper.reshape(1, -1) - RAMP, 'arm': arm.reshape(1, -1) + RAMP}
    if peer.mode == 'nan':
        chunk['arm'][1, 0] = np.nan
    if peer.mode == 'overflow':
        chunk['arm'][1, 0] = 1e300
    if peer.mode == 'wrong_shape':
        chunk['arm'] = chunk['arm'][:-1]
    if peer.mode == 'missing':
        del chunk['hand']
    if peer.mode == 'huge':
        chunk['arm'] = np.zeros((150_000, 2))
    return chunk


class TlsFiles(NamedTuple):
    """Of a server that wants a certificate of its clients."""

    certificate: Path
    key: Path
    authority: Path

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.authority)
        context.load_cert_chain(self.certificate, self.key)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def credentials(self) -> grpc.ServerCredentials:
        certificate, key, authority = (path.read_bytes() for path in self)
        return grpc.ssl_server_credentials([(key, certificate)], authority, True)


class Peer:
    """The test's thread calls; `serve` runs in the event loop of a thread, until `stop`."""

    scheme = ''

    def __init__(self) -> None:
        self.mode, self.port, self.metadata = 'ok', 0, self.says()
        self.requests: list[Any] = []
        self.tls: TlsFiles | None = None
        self.connects = 0
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f'{self.scheme}://127.0.0.1:{self.port}'

    def start(self) -> None:
        """Start, again on the port that it had before."""
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(LIMIT_S)

    def stop(self) -> None:
        if self._thread:
            self._loop.call_soon_threadsafe(self._ended.set)
            self._thread.join(LIMIT_S)
            assert not self._thread.is_alive()
            self._thread = None

    async def _run(self, ready: threading.Event) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        async with self.serve():
            ready.set()
            await self._ended.wait()

    def says(self) -> dict[str, Any]:
        """Return the metadata."""
        return {'model': 'v1', 'reset_pose': [0.0, 1.0]}

    def serve(self) -> contextlib.AbstractAsyncContextManager[None]:
        raise NotImplementedError


class WebPeer(Peer):
    """Of what is served by aiohttp."""

    def routes(self) -> list[web.RouteDef]:
        raise NotImplementedError

    @contextlib.asynccontextmanager
    async def serve(self) -> Iterator[None]:
        application = web.Application()
        application.add_routes(self.routes())
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        tls = self.tls.context() if self.tls else None
        site = web.TCPSite(runner, '127.0.0.1', self.port, reuse_address=True, ssl_context=tls)
        await site.start()
        self.port = runner.addresses[0][1]
        yield
        await runner.cleanup()


class OpenpiPeer(WebPeer):
    scheme = 'ws'

    def routes(self) -> list[web.RouteDef]:
        return [web.get('/', self._talk)]

    async def _talk(self, request: web.Request) -> web.WebSocketResponse:
        self.connects += 1
        if self.mode == 'unauthorized' and request.headers.get('Authorization') != 'Api-Key k':
            raise web.HTTPUnauthorized
        socket = web.WebSocketResponse(compress=False, max_msg_size=0, timeout=0.1)
        await socket.prepare(request)
        if self.mode == 'mute':
            await self._ended.wait()
        await socket.send_bytes(packed(self.metadata))
        async for message in socket:
            received = unpacked(message.data)
            self.requests.append(received)
            if self.mode == 'hang':
                await self._ended.wait()
            elif self.mode == 'reset':
                # the header of a message of 1000 bytes, and three of them
                request.transport.write(b'\x82\x7e\x03\xe8abc')
                request.transport.abort()
            elif self.mode == 'garbage':
                await socket.send_bytes(b'\xc1')
            elif self.mode == 'error':
                await socket.send_str('Traceback\n  x\nValueError: no such key,\n   [1]}')
                await socket.close(code=1011)
            else:
                state = received['observation']
                reply = chunk_of(self, state['arm'], state['gripper'])
                reply['server_timing'] = {'infer_ms': 7.5}
                await socket.send_bytes(packed(reply))
        return socket


class HttpPeer(WebPeer):
    scheme = 'http'

    def routes(self) -> list[web.RouteDef]:
        return [web.get('/config', self._config), web.post('/act', self._act)]

    async def _config(self, request: web.Request) -> web.Response:
        self.connects += 1
        if self.mode == 'unauthorized' and request.headers.get('Authorization') != 'Bearer k':
            raise web.HTTPUnauthorized
        if self.mode == 'mute':
            await self._ended.wait()
        return web.json_response(self.metadata)

    async def _act(self, request: web.Request) -> web.StreamResponse:
        received = await request.json()
        self.requests.append(received)
        if self.mode == 'hang':
            await self._ended.wait()
        if self.mode == 'reset':
            response = web.StreamResponse(headers={'Content-Length': '1000'})
            await response.prepare(request)
            await response.write(b'{"arm": [[')
            request.transport.abort()
            return response
        if self.mode == 'garbage':
            return web.Response(body=b'[' * 100_000)
        if self.mode == 'error':
            return web.Response(status=503, text='ValueError: no such key')
        state = received['observation']
        reply = chunk_of(self, np.array(state['arm']), np.array(state['gripper']))
        headers = {'X-Reflex-Model-Version': 'v1@abc', 'X-Reflex-Policy-Slot': 'a'}
        text = json.dumps({key: part.tolist() for key, part in reply.items()})
        return web.Response(text=text, headers=headers)


class GrootPeer(Peer):
    scheme = 'tcp'

    def says(self) -> dict[str, Any]:
        return {
            'video': modality(['front_view'], [0]),
            'state': modality(['arm', 'gripper'], [0]),
            'action': modality(['hand', 'arm'], [*range(STEPS)]),
            'language': modality(['annotation.task'], [0]),
        }

    @contextlib.asynccontextmanager
    async def serve(self) -> Iterator[None]:
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f'tcp://127.0.0.1:{self.port or "*"}')
        self.port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(':')[2])
        task = asyncio.create_task(self._loop_of(socket))
        yield
        task.cancel()
        await asyncio.wait([task])
        context.destroy(linger=0)

    async def _loop_of(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            request = msgpack.unpackb(await socket.recv(), object_hook=unpack_npy)
            reply = await self._reply(request)
            await socket.send(reply)

    async def _reply(self, request: dict[str, Any]) -> bytes:
        if self.mode == 'unauthorized' and request.get('api_token') != 'k':
            return msgpack.packb({'error': 'Unauthorized: Invalid API token'})
        if request['endpoint'] == 'get_modality_config':
            self.connects += 1
            if self.mode == 'mute':
                await self._ended.wait()
            return msgpack.packb(self.metadata)
        observation = request['data']['observation']
        self.requests.append(observation)
        if self.mode in ('hang', 'reset'):
            await self._ended.wait()
        if self.mode == 'garbage':
            return b'\xc1'
        if self.mode == 'error':
            return msgpack.packb({'error': 'ValueError: no such key'})
        state = observation['state']
        action = {
            key: part[None].astype(np.float64 if self.mode == 'overflow' else np.float32)
            for key, part in chunk_of(self, state['arm'][0], state['gripper'][0]).items()
        }
        return msgpack.packb([action, {}], default=pack_npy)


def modality(keys: list[str], steps: list[int]) -> dict[str, Any]:
    fields = {'delta_indices': steps, 'modality_keys': keys}
    return {'__ModalityConfig_class__': True, 'as_json': fields}


def pack_npy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        output = io.BytesIO()
        np.save(output, value, allow_pickle=False)
        return {'__ndarray_class__': True, 'as_npy': output.getvalue()}
    return value


def unpack_npy(value: dict[Any, Any]) -> Any:
    if '__ndarray_class__' in value:
        return np.load(io.BytesIO(value['as_npy']), allow_pickle=False)
    return value


class LerobotAsyncPeer(Peer):
    scheme = 'grpc'

    @contextlib.asynccontextmanager
    async def serve(self) -> Iterator[None]:
        # a server that was restarted has none
        self.policy: Any = None
        self._unblock = threading.Event()
        pool = ThreadPoolExecutor(4)
        server = grpc.server(pool, options=[('grpc.so_reuseport', 0)])
        methods = {
            'Ready': grpc.unary_unary_rpc_method_handler(self._ready),
            'SendPolicyInstructions': grpc.unary_unary_rpc_method_handler(self._configure),
            'SendObservations': grpc.stream_unary_rpc_method_handler(self._observe),
            'GetActions': grpc.unary_unary_rpc_method_handler(self._act),
        }
        handler = grpc.method_handlers_generic_handler('transport.AsyncInference', methods)
        server.add_generic_rpc_handlers((handler,))
        address = f'127.0.0.1:{self.port}'
        if self.tls:
            self.port = server.add_secure_port(address, self.tls.credentials())
        else:
            self.port = server.add_insecure_port(address)
        server.start()
        yield
        self._unblock.set()
        server.stop(None).wait()
        pool.shutdown()

    def _ready(self, request: bytes, context: Any) -> bytes:
        self.connects += 1
        self.policy = None
        if self.mode == 'mute':
            self._unblock.wait()
        sent = dict(context.invocation_metadata())
        if self.mode == 'unauthorized' and sent.get('authorization') != 'Bearer k':
            context.abort(grpc.StatusCode.UNAUTHENTICATED, 'Unauthorized')
        return b''

    def _configure(self, request: bytes, context: Any) -> bytes:
        self.policy = unpickled(field(request))
        return b''

    def _observe(self, pieces: Any, context: Any) -> bytes:
        # before the bytes: one field of one byte
        self.requests.append(unpickled(b''.join(field(piece[2:]) for piece in pieces)))
        return b''

    def _act(self, request: bytes, context: Any) -> bytes:
        if self.mode == 'hang':
            self._unblock.wait()
        if self.mode == 'reset':
            context.abort(grpc.StatusCode.UNAVAILABLE, 'Connection reset by peer')
        if self.mode == 'error':
            raise ValueError('no such key')
        if self.mode == 'garbage':
            return message(pickle.dumps([Exploit()]))
        if self.mode == 'huge':
            return message(bytes(2 << 20))
        if self.policy is None or self.mode == 'silent':
            return b''
        seen = self.requests[-1]
        first = seen.timestep - (self.mode == 'stale')
        rows = enumerate(tensors(self._chunk(seen.observation)))
        return message(pickled([TimedAction(seen.timestamp, first + i, row) for i, row in rows]))

    def _chunk(self, seen: dict[str, Any]) -> np.ndarray:
        parts = chunk_of(self, np.array([seen['a'], seen['b']]), np.array([seen['c']]))
        if self.mode == 'wrong_shape':
            parts['hand'] = parts['hand'][:-1]
        ordered = [parts[key] for key in ('arm', 'hand') if key in parts]
        with np.errstate(over='ignore'):
            return np.concatenate(ordered, axis=1).astype(np.float32)


class Exploit:
    """Its pickle creates a file where it is loaded."""

    path = ''

    def __reduce__(self) -> Any:
        return open, (Exploit.path, 'w')


def tensors(actions: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(actions)


def message(data: bytes) -> bytes:
    """Return a protobuf message with bytes in field 1."""
    size, rest = b'', len(data)
    while rest > 127:
        size, rest = size + bytes([rest % 128 + 128]), rest // 128
    return b'\x0a' + size + bytes([rest]) + data


def field(message: bytes) -> bytes:
    """Return the bytes in the one field of a protobuf message."""
    end = next(i for i in range(1, 11) if message[i] < 128)
    size = sum((message[i] & 127) << 7 * (i - 1) for i in range(1, end + 1))
    assert end + 1 + size == len(message)
    return message[end + 1 :]


PEERS: dict[str, Callable[[], Peer]] = {
    'openpi': OpenpiPeer,
    'http': HttpPeer,
    'groot': GrootPeer,
    'lerobot_async': LerobotAsyncPeer,
}
WITH_METADATA = ('openpi', 'http', 'groot')
COMMON = """
name: two_hands
state_names: [a, b, c]
action_names: [a, b, c]
cameras: {front: {height: 4, width: 6}}
chunk_steps: 4
control_hz: 20
connect_timeout_s: 10
predict_timeout_s: 10
max_reply_mb: 1
"""
ACTIONS = """
actions: {hand: [c], arm: [a, b]}
"""
NESTED = """
state: {observation>arm: [a, b], observation>gripper: [c]}
images: {observation>front_view: front}
"""
FLAT = """
state: {arm: [a, b], gripper: [c]}
images: {front_view: front}
task: annotation.task
"""
NAMED = """
policy_type: act
pretrained_name_or_path: user/act
"""
CONTRACTS = {
    'openpi': COMMON + ACTIONS + NESTED,
    'http': COMMON + ACTIONS + NESTED,
    'groot': COMMON + ACTIONS + FLAT,
    'lerobot_async': COMMON + NAMED,
}
