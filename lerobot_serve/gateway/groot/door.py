# SPDX-License-Identifier: Apache-2.0
"""
The door for GR00T's client: each connection is a caller with a session of its own.

No REP socket as GR00T's server has, which serves one client after the other, and no ROUTER socket,
which has no TLS and bounds neither connections nor a message in many parts: ZeroMQ's wire is read
here. The event loop of the gateway runs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.mapping import read_mapping
from lerobot_serve.gateway.callers.predictions import invalid, Prediction, PredictionError, Status
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.groot.connection import Message
from lerobot_serve.gateway.groot.observation import (
    episode_of,
    modality_config,
    prediction_request,
)
from lerobot_serve.gateway.groot.server import Peer, ZmtpServer
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.msgpack_arrays import pack_groot, unpack_groot

UNAUTHORIZED = 'Unauthorized: Invalid API token'
# that run, of all clients together; further ones are refused
MAX_REQUESTS = 256

Endpoint = Callable[[Caller, Any], Awaitable[Any]]


class GrootDoor(ZmtpServer):
    """See the module."""

    def __init__(self, gateway: Gateway, exposure: Exposure, settings: EndpointSettings) -> None:
        """Raise UserError for a mapping that cannot be read."""
        super().__init__(gateway, exposure, settings)
        self._mapping = read_mapping(settings.mapping)
        self._endpoints: dict[str, Endpoint] = {
            'ping': self._ping,
            'get_modality_config': self._modalities,
            'reset': self._reset,
            'get_action': self._act,
        }
        # callers whose next observation begins an episode, with its id
        self._starting: dict[Caller, str] = {}
        self._running = 0

    async def _left(self, peer: Peer) -> None:
        """Free the places of a connection that ended; one with an identity comes back."""
        if not peer.identity:
            for caller in peer.callers:
                self._starting.pop(caller, None)
                await self._gateway.release(caller)

    # requests

    async def _answer(self, peer: Peer, message: Message) -> bytes:
        """Return the reply to one message; a client that sent something else gets an error."""
        if self._running >= MAX_REQUESTS:
            self._on_refused('max_requests')
            text = f'{MAX_REQUESTS} requests are running, which is max_requests; retry later'
            return pack_groot(_error(Status.OVERLOADED, text))
        self._running += 1
        try:
            return pack_groot(await self._reply(peer, message))
        except PredictionError as error:
            return pack_groot(_error(error.status, error.text, error.retry_after_s))
        except PeerFormatError as error:
            self._on_refused('malformed')
            return pack_groot(_error(Status.INVALID, f'the message cannot be read: {error}'))
        except Exception as error:
            # the client waits for a reply without a limit
            self._on_refused('internal_error')
            self._report(error)
            text = 'internal error; see the log of the gateway'
            return pack_groot(_error(Status.FAILED, text))
        finally:
            self._running -= 1

    def _report(self, error: Exception) -> None:
        """Let the loop log an error of this package with its traceback."""
        context = {'message': f'the door {self._exposure.door}', 'exception': error}
        asyncio.get_running_loop().call_exception_handler(context)

    async def _reply(self, peer: Peer, message: Message) -> Any:
        """Return the reply of an endpoint. Raises PredictionError, PeerFormatError."""
        if not message.is_request:
            raise PeerFormatError('a request is one frame, got several')
        request = unpack_groot(message.body)
        if not isinstance(request, dict):
            raise PeerFormatError('a request is a map with the key endpoint')
        caller = self._caller(peer, request.get('api_token'))
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
                else f'{str(name)[:120]!r} is not an endpoint; there are '
                f'{", ".join(self._endpoints)}'
            )
        return await endpoint(caller, request.get('data'))

    def _caller(self, peer: Peer, token: object) -> Caller | None:
        """Return who sent a message; None for a wrong token."""
        given, host = token if isinstance(token, str) else '', peer.connection.host
        if not self._exposure.lets_in(given):
            return None
        # a socket with an identity is the same caller over each of its connections
        identity = peer.identity.hex()
        address = f'{host}#{identity}' if identity else f'{host}:{peer.connection.port}'
        name = self._exposure.name_of(given)
        caller = Caller(self._exposure.door, address, name, f'{host}/{name}')
        peer.callers.add(caller)
        return caller

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


def _info(prediction: Prediction) -> dict[str, Any]:
    return {**prediction.as_reply(), 'note': NO_CAGE}


def _error(status: Status, text: str, retry_after_s: float = 0.0) -> dict[str, Any]:
    reply: dict[str, Any] = {'error': f'{status}: {text}', 'status': str(status)}
    return reply | ({'retry_after_s': retry_after_s} if retry_after_s else {})
