# SPDX-License-Identifier: Apache-2.0
"""
The kind `openpi`: a policy that openpi's websocket server runs.

The server sends its metadata first, then one reply to each observation. Event loop of the thread
`remote peer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import contextlib
import re
from typing import Any, Literal

import aiohttp
from msgspec import UNSET, UnsetType
import numpy as np

from lerobot_serve.peer_formats.msgpack_arrays import pack_openpi, unpack_openpi
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.remote.address import tls_of
from lerobot_serve.policies.remote.contract_file import MappedContractFile, RemoteContract
from lerobot_serve.policies.remote.mapping import assembled_actions, put, state_parts
from lerobot_serve.policies.remote.peer import (
    BadReply,
    Peer,
    PeerObservation,
    PeerRefused,
    PeerReply,
    PeerUnavailable,
    SHOWN_CHARACTERS,
)
from lerobot_serve.policies.remote.policy import load_remote, RemotePolicy

# an exception at the end of a traceback; its text may go on for some lines
EXCEPTION = re.compile(r'[A-Za-z_][\w.]*(: |$)')
MESSAGES = (aiohttp.WSMsgType.BINARY, aiohttp.WSMsgType.TEXT)


class OpenpiContractFile(MappedContractFile, frozen=True, kw_only=True):
    """With the field of this protocol."""

    image_layout: Literal['hwc', 'chw'] | UnsetType = UNSET


class OpenpiPeer(Peer):
    """See the module."""

    kind, schemes, contract_file = 'openpi', ('ws', 'wss'), OpenpiContractFile

    def __init__(self, contract: RemoteContract, on_lost: Callable[[str], None]) -> None:
        super().__init__(contract, on_lost)
        self._session: aiohttp.ClientSession | None = None
        self._reader: asyncio.Task[None] | None = None
        self._pending: asyncio.Future[aiohttp.WSMessage] | None = None

    async def connect(self) -> dict[str, Any]:
        key = self._contract.api_key
        headers = {'Authorization': f'Api-Key {key}'} if key else {}
        self._session = aiohttp.ClientSession(headers=headers)
        try:
            self._socket = await self._session.ws_connect(
                self._contract.url,
                max_msg_size=self._contract.max_reply_bytes,
                compress=0,
                ssl=tls_of(self._contract),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise PeerRefused(f'refuses with HTTP status {error.status}') from None
        except aiohttp.ClientError as error:
            raise PeerUnavailable(str(error)) from None
        metadata = unpacked(self._checked(await self._socket.receive()))
        # reads between requests too, so that pings are answered and a close is noticed
        self._reader = asyncio.create_task(self._read())
        return metadata

    async def predict(self, observation: PeerObservation) -> PeerReply:
        self._pending = asyncio.get_running_loop().create_future()
        try:
            await self._socket.send_bytes(pack_openpi(request_of(observation, self._contract)))
            reply = unpacked(await self._pending)
        finally:
            self._pending = None
        return PeerReply(assembled_actions(reply, self._contract), forward_ms_of(reply))

    async def close(self) -> None:
        if self._reader:
            self._reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reader
        if self._session:
            await self._session.close()

    async def _read(self) -> None:
        """Pass each message to the waiting request, until the connection ends."""
        while True:
            message = await self._socket.receive()
            pending = self._pending
            try:
                self._checked(message)
            except (PeerUnavailable, BadReply) as error:
                if pending and not pending.done():
                    pending.set_exception(error)
                else:
                    self._on_lost(str(error))
                return
            if pending is None or pending.done():
                self._on_lost('sent a message that answers no request')
                return
            pending.set_result(message)

    def _checked(self, message: aiohttp.WSMessage) -> aiohttp.WSMessage:
        """Return a message with content. Raises BadReply, PeerUnavailable."""
        if message.type in MESSAGES:
            return message
        error = message.data
        if isinstance(error, aiohttp.WebSocketError):
            too_big = error.code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
            raise BadReply(self._too_large if too_big else str(error))
        raise PeerUnavailable(f'closed the connection (code {error})')


def unpacked(message: aiohttp.WSMessage) -> dict[str, Any]:
    """
    Return the map in a message; a text is an error. Raises PeerRefused, BadReply, PeerFormatError.
    """
    if message.type is aiohttp.WSMsgType.TEXT:
        raise PeerRefused(error_line(message.data))
    content = unpack_openpi(message.data)
    if not isinstance(content, dict):
        raise BadReply(f'the reply must be a map, got {content!r:.80}')
    return content


def request_of(observation: PeerObservation, contract: RemoteContract) -> dict[str, Any]:
    """Return the observation under the keys of the server."""
    request: dict[str, Any] = {}
    for key, values in state_parts(observation.state, contract).items():
        put(request, key, values)
    is_chw = contract.options.get('image_layout') == 'chw'
    for key, camera in contract.images.items():
        image = observation.images[camera]
        put(request, key, np.moveaxis(image, -1, 0) if is_chw else image)
    put(request, contract.task or 'prompt', observation.task)
    return request


def error_line(text: str) -> str:
    """Return the line of a traceback that says what happened, or the last line of a text."""
    lines = text.strip().splitlines() or ['no text']
    told = next((line for line in reversed(lines) if EXCEPTION.match(line)), lines[-1])
    return told.strip()[:SHOWN_CHARACTERS]


def forward_ms_of(reply: dict[str, Any]) -> float | None:
    """Return the inference time that the server reports, None without one."""
    timing = reply.get('server_timing')
    value = timing.get('infer_ms') if isinstance(timing, dict) else None
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e6 else None


def load(options: LoadOptions) -> RemotePolicy:
    """Return the policy of a contract file. Raises PolicyError."""
    return load_remote(OpenpiPeer, options)
