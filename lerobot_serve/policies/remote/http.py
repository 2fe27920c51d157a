# SPDX-License-Identifier: Apache-2.0
"""
The kind `http`: a policy behind `POST /act` with JSON; images are JPEG in base64.

Metadata is the JSON object of `GET /config`; a server without that page (404) has none. It is read
again on each new TCP connection, because another server may answer there. Event loop of the thread
`remote peer`.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
import contextlib
import json
from typing import Annotated, Any

import aiohttp
from msgspec import Meta, UNSET, UnsetType
import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import FrameArray
from lerobot_serve.contract.image_codec import encode_jpeg
from lerobot_serve.policies.base import LoadOptions
from lerobot_serve.policies.remote.address import tls_of
from lerobot_serve.policies.remote.contract_file import MappedContractFile, RemoteContract, Text
from lerobot_serve.policies.remote.mapping import assembled_actions, put, state_parts
from lerobot_serve.policies.remote.metadata import selected
from lerobot_serve.policies.remote.peer import (
    BadReply,
    Peer,
    PeerChanged,
    PeerObservation,
    PeerRefused,
    PeerReply,
    PeerUnavailable,
    SHOWN_CHARACTERS,
)
from lerobot_serve.policies.remote.policy import load_remote, RemotePolicy

UrlPath = Annotated[
    str,
    Meta(
        pattern=r'^(/[A-Za-z0-9_.-]+)+/?\Z',
        description='a path that begins with /, of letters, digits and ._-/',
    ),
]
JPEG_QUALITY = 95
BLOCK_BYTES = 1 << 16
OK, NOT_FOUND = 200, 404
VERSION_HEADER = 'X-Reflex-Model-Version'


class NewConnection(Exception):
    """A request needs a new TCP connection, over which the metadata must be read first."""


class HttpContractFile(MappedContractFile, frozen=True, kw_only=True):
    """With the fields of this protocol."""

    act_path: UrlPath | UnsetType = UNSET
    config_path: UrlPath | UnsetType = UNSET
    model_version: Text | UnsetType = UNSET


class HttpPeer(Peer):
    """See the module."""

    kind, schemes, contract_file = 'http', ('http', 'https'), HttpContractFile
    image_prefix = 'images>'

    def __init__(self, contract: RemoteContract, on_lost: Callable[[str], None]) -> None:
        super().__init__(contract, on_lost)
        self._session: aiohttp.ClientSession | None = None
        base, options = contract.url.rstrip('/'), contract.options
        self._act_url = base + options.get('act_path', '/act')
        self._config_url = base + options.get('config_path', '/config')
        self._may_connect, self._known = False, dict[str, Any]()

    async def connect(self) -> dict[str, Any]:
        key = self._contract.api_key
        connector = aiohttp.TCPConnector(limit=1, ssl=tls_of(self._contract))
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(self._on_new_connection)
        self._session = aiohttp.ClientSession(
            connector=connector,
            trace_configs=[trace],
            headers={'Authorization': f'Bearer {key}'} if key else {},
            # the connection has its own, for all steps of a request together
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        self._may_connect = True
        metadata = await self._config()
        self._known = selected(metadata, self._contract.metadata_keys)
        self._may_connect = False
        return metadata

    async def predict(self, observation: PeerObservation) -> PeerReply:
        request = json.dumps(request_of(observation, self._contract)).encode()
        try:
            status, headers, body = await self._exchange('POST', self._act_url, request)
        except NewConnection:
            await self._verify()
            status, headers, body = await self._exchange('POST', self._act_url, request)
        finally:
            self._may_connect = False
        reply = _object(status, body)
        self._check_version(headers.get(VERSION_HEADER, ''))
        parts = {key: _array(reply[key]) for key in self._contract.actions if key in reply}
        return PeerReply(assembled_actions(parts, self._contract))

    async def close(self) -> None:
        if self._session:
            await self._session.close()

    async def _config(self) -> dict[str, Any]:
        status, _, body = await self._exchange('GET', self._config_url)
        return {} if status == NOT_FOUND else _object(status, body)

    async def _on_new_connection(self, *details: object) -> None:
        if not self._may_connect:
            raise NewConnection

    async def _verify(self) -> None:
        """Read the metadata over a new connection. Raises PeerUnavailable if they changed."""
        self._may_connect = True
        metadata = await self._config()
        if selected(metadata, self._contract.metadata_keys) != self._known:
            raise PeerUnavailable('its metadata changed')

    async def _exchange(
        self, method: str, url: str, data: bytes | None = None
    ) -> tuple[int, Any, bytes]:
        """Return status, headers and body of one request. Raises PeerUnavailable, BadReply."""
        if self._session is None:
            raise PeerUnavailable('not connected')
        headers = {'Content-Type': 'application/json', 'Accept-Encoding': 'identity'}
        try:
            async with self._session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as response:
                return response.status, response.headers, await self._body(response)
        except aiohttp.ClientError as error:
            reason = str(error) or type(error).__name__
            raise PeerUnavailable(reason[:SHOWN_CHARACTERS]) from None

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        limit, body = self._contract.max_reply_bytes, bytearray()
        async for block in response.content.iter_chunked(BLOCK_BYTES):
            body += block
            if len(body) > limit:
                raise BadReply(self._too_large)
        return bytes(body)

    def _check_version(self, given: str) -> None:
        """Raise PeerChanged if the operator named another version."""
        expected = self._contract.options.get('model_version', '')
        if expected and given != expected:
            raise PeerChanged(
                f'{VERSION_HEADER} is {given[:200]!r}, the contract file has '
                f'model_version {expected!r}; correct the file or the server'
            )


def request_of(observation: PeerObservation, contract: RemoteContract) -> dict[str, Any]:
    """Return the JSON of one observation, under the keys of the server."""
    request: dict[str, Any] = {'episode_id': observation.episode_id}
    for key, values in state_parts(observation.state, contract).items():
        put(request, key, values.tolist())
    for key, camera in contract.images.items():
        put(request, key, _jpeg_text(camera, observation.images[camera]))
    put(request, contract.task or 'instruction', observation.task)
    return request


def _object(status: int, body: bytes) -> dict[str, Any]:
    """Return the JSON object of a reply. Raises PeerRefused, BadReply."""
    if status != OK:
        text = ' '.join(body[:SHOWN_CHARACTERS].decode(errors='replace').split())
        raise PeerRefused(f'HTTP status {status}: {text or "no text"}')
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadReply(f'not valid JSON: {error!s:.200}') from None
    if not isinstance(content, dict):
        raise BadReply(f'the reply must be an object, got {content!r:.80}')
    return content


def _jpeg_text(camera: str, image: FrameArray) -> str:
    return base64.b64encode(encode_jpeg(camera, image, JPEG_QUALITY)).decode()


def _array(value: Any) -> NDArray[Any]:
    """Return the array of a list of lists; an empty one for what is none."""
    # ragged lists, or numbers too large for a float
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        return np.asarray(value)
    return np.empty(0)


def load(options: LoadOptions) -> RemotePolicy:
    """Return the policy of a contract file. Raises PolicyError."""
    return load_remote(HttpPeer, options)
