# SPDX-License-Identifier: Apache-2.0
"""
The door for GR00T's client: each connection is a caller with a session of its own.

A ROUTER socket instead of GR00T's REP: a REP socket serves one client after the other, and waits
for one that left. ZeroMQ has no TLS. The event loop of the gateway runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
import contextlib
from functools import partial
from typing import Any

import zmq
import zmq.asyncio

from lerobot_serve.errors import UserError
from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.caller import Caller, NO_CAGE
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.groot.modalities import modality_config
from lerobot_serve.gateway.groot.observation import episode_of, invalid, prediction_request
from lerobot_serve.gateway.groot.settings import GrootSettings
from lerobot_serve.gateway.mapping import NameMapping, read_mapping
from lerobot_serve.gateway.predictions import Prediction, PredictionError, Status
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.msgpack_arrays import pack_groot, unpack_groot

# a client waits for its reply before it asks again
QUEUED_MESSAGES = 4
END_LINGER_MS = 200
UNANSWERED_HEARTBEATS = 3
UNAUTHORIZED = 'Unauthorized: Invalid API token'

Endpoint = Callable[[Caller, Any], Awaitable[Any]]


def make_door(gateway: Gateway, exposure: Exposure, settings: Mapping[str, Any]) -> GrootDoor:
    """Return the door. Raises UserError."""
    return GrootDoor(gateway, exposure, GrootSettings.from_parameters(settings))


class GrootDoor:
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: GrootSettings) -> None:
        """Raise UserError for a mapping that cannot be read, and for TLS."""
        if exposure.certificate:
            raise UserError(
                'the door groot has no TLS, because ZeroMQ has none; remove the certificate, and '
                'reach it from other machines through a tunnel'
            )
        self._gateway, self._exposure, self._settings = gateway, exposure, settings
        self._mapping = read_mapping(settings.mapping) if settings.mapping else NameMapping()
        self._on_refused = partial(gateway.on_refused, exposure.door)
        self._endpoints: dict[str, Endpoint] = {
            'ping': self._ping,
            'get_modality_config': self._modalities,
            'reset': self._reset,
            'get_action': self._act,
        }
        # callers whose next observation begins an episode, with its id
        self._starting: dict[Caller, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self._context: zmq.asyncio.Context | None = None
        self.address = ''

    async def start(self) -> None:
        """Listen. Raises UserError."""
        host = self._exposure.host
        # ZeroMQ takes addresses only
        numeric = '127.0.0.1' if host == 'localhost' else f'[{host}]' if ':' in host else host
        context = zmq.asyncio.Context()
        self._socket = self._open_socket(context)
        try:
            self._socket.bind(f'tcp://{numeric}:{self._exposure.port or "*"}')
        except zmq.ZMQError as error:
            context.destroy(linger=0)
            raise UserError(
                f'the door {self._exposure.door} cannot listen on {host} port '
                f'{self._exposure.port}: {error.strerror}'
            ) from None
        self._context = context
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._receiving = asyncio.create_task(self._receive())

    def _open_socket(self, context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
        settings = self._settings
        heartbeat_ms = round(settings.heartbeat_interval_s * 1000)
        socket = context.socket(zmq.ROUTER)
        for option, value in (
            (zmq.IPV6, ':' in self._exposure.host),
            (zmq.MAXMSGSIZE, settings.max_message_bytes),
            (zmq.RCVHWM, QUEUED_MESSAGES),
            (zmq.SNDHWM, QUEUED_MESSAGES),
            # a reply that cannot be sent is an error, which is counted
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.HANDSHAKE_IVL, round(settings.handshake_timeout_s * 1000)),
            (zmq.HEARTBEAT_IVL, heartbeat_ms),
            (zmq.HEARTBEAT_TIMEOUT, UNANSWERED_HEARTBEATS * heartbeat_ms),
        ):
            socket.setsockopt(option, int(value))
        return socket

    async def stop(self) -> None:
        """Answer nobody any more. May be called twice."""
        tasks = [*self._tasks, *filter(None, [self._receiving])]
        self._receiving = None
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        context, self._context = self._context, None
        if context:
            context.destroy(linger=END_LINGER_MS)

    # requests

    async def _receive(self) -> None:
        while True:
            frames = await self._socket.recv_multipart(copy=False)
            if len(self._tasks) >= self._settings.max_requests:
                self._on_refused('max_requests')
                self._send(frames, _error(Status.OVERLOADED, self._overloaded))
                continue
            task = asyncio.create_task(self._answer(frames))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _overloaded(self) -> str:
        limit = self._settings.max_requests
        return f'{limit} requests are running, which is max_requests; retry later'

    async def _answer(self, frames: list[zmq.Frame]) -> None:
        """Reply to one message; a client that sent something else gets an error, too."""
        try:
            reply = await self._reply(frames)
        except PredictionError as error:
            reply = _error(error.status, error.text, error.retry_after_s)
        except PeerFormatError as error:
            self._on_refused('malformed')
            reply = _error(Status.INVALID, f'the message cannot be read: {error}')
        except Exception:
            # the client waits for a reply without a limit
            self._on_refused('internal_error')
            self._send(frames, _error(Status.FAILED, 'internal error; see the log of the gateway'))
            raise
        self._send(frames, reply)

    async def _reply(self, frames: list[zmq.Frame]) -> Any:
        """Return the reply of an endpoint. Raises PredictionError, PeerFormatError."""
        if not _is_request(frames):
            raise PeerFormatError(f'a request is one frame, got {len(frames) - 1}')
        request = unpack_groot(frames[-1].buffer)
        if not isinstance(request, dict):
            raise PeerFormatError('a request is a map with the key endpoint')
        caller = self._caller(frames, request.get('api_token'))
        if caller is None:
            self._on_refused(Status.UNAUTHORIZED)
            return {'error': UNAUTHORIZED}
        name = request.get('endpoint', 'get_action')
        endpoint = self._endpoints.get(name) if isinstance(name, str) else None
        if endpoint is None:
            self._on_refused('kill' if name == 'kill' else 'unknown_endpoint')
            raise invalid(
                'kill is refused: stop the gateway on its machine'
                if name == 'kill'
                else f'{str(name)[:120]!r} is no endpoint; there are {", ".join(self._endpoints)}'
            )
        return await endpoint(caller, request.get('data'))

    def _caller(self, frames: list[zmq.Frame], token: object) -> Caller | None:
        """Return who sent a message, None for a wrong token."""
        given = token if isinstance(token, str) else ''
        if not self._exposure.lets_in(given):
            return None
        address = '?'
        with contextlib.suppress(zmq.ZMQError):
            address = str(frames[-1].get('Peer-Address'))
        # of a client without an id of its own: ZeroMQ makes one of 5 bytes
        identity = frames[0].bytes.hex()
        name = self._exposure.name_of(given)
        return Caller(self._exposure.door, f'{address}#{identity}', name, f'{address}/{name}')

    def _send(self, frames: list[zmq.Frame], reply: Any) -> None:
        """Send a reply, or count that its client is gone or reads no replies."""
        envelope = [frames[0].bytes, *([b''] if len(frames) > 2 else [])]
        message = [*envelope, pack_groot(reply)]
        sent = asyncio.ensure_future(self._socket.send_multipart(message, zmq.NOBLOCK))
        sent.add_done_callback(self._on_sent)

    def _on_sent(self, sent: asyncio.Future[Any]) -> None:
        if not sent.cancelled() and sent.exception():
            self._on_refused('reply_unsent')

    # endpoints

    async def _ping(self, caller: Caller, data: Any) -> Any:
        return {'status': 'ok', 'message': f'Server is running; {NO_CAGE}'}

    async def _modalities(self, caller: Caller, data: Any) -> Any:
        contract = await self._gateway.describe()
        return modality_config(contract, self._mapping, self._settings.language_key)

    async def _reset(self, caller: Caller, data: Any) -> Any:
        """Begin a new episode with the next observation."""
        episode_id = episode_of(data)
        await self._gateway.session(caller)
        for gone in self._starting.keys() - set(self._gateway.callers):
            del self._starting[gone]
        self._starting[caller] = episode_id
        return {'note': NO_CAGE}

    async def _act(self, caller: Caller, data: Any) -> Any:
        session = await self._gateway.session(caller)
        request = prediction_request(
            data,
            self._mapping,
            session.contract,
            episode_start=caller in self._starting,
            episode_id=self._starting.get(caller, ''),
        )
        prediction = await session.predict(request)
        self._starting.pop(caller, None)
        columns = self._mapping.action_columns(session.contract)
        actions = {key: prediction.actions[None][:, :, at] for key, at in columns.items()}
        return [actions, _info(prediction)]


def _is_request(frames: list[zmq.Frame]) -> bool:
    """Whether this is identity and body, with the empty frame of a REQ socket or without."""
    return len(frames) == 2 or (len(frames) == 3 and not len(frames[1]))


def _info(prediction: Prediction) -> dict[str, Any]:
    names = ('slot', 'policy', 'fingerprint', 'sequence', 'inference_ms', 'queue_wait_ms')
    told = {
        name: getattr(prediction, name)
        for name in (*names, 'policy_changed', 'episode_id', 'text')
    }
    return {**told, 'note': NO_CAGE}


def _error(status: Status, text: str, retry_after_s: float = 0.0) -> dict[str, Any]:
    reply: dict[str, Any] = {'error': f'{status}: {text}', 'status': str(status)}
    return reply | ({'retry_after_s': retry_after_s} if retry_after_s else {})
