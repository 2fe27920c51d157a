# SPDX-License-Identifier: Apache-2.0
"""
The kind `groot`: a policy that GR00T's ZeroMQ server runs.

Metadata is the reply to `get_modality_config`, checked against the contract file. The socket is a
DEALER: GR00T's own client uses REQ, which is unusable after a lost reply. Event loop of the thread
`remote peer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zmq
import zmq.asyncio

from lerobot_serve.peer_formats.msgpack_arrays import pack_groot, unpack_groot
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.remote.contract_file import RemoteContract
from lerobot_serve.policies.remote.mapping import assembled_actions, state_parts
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

ENDED = zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class GrootPeer(Peer):
    """See the module."""

    kind, schemes = 'groot', ('tcp', '')

    def __init__(self, contract: RemoteContract, on_lost: Callable[[str], None]) -> None:
        super().__init__(contract, on_lost)
        self._socket: zmq.asyncio.Socket | None = None
        self._monitor: asyncio.Task[None] | None = None

    @staticmethod
    def check(contract: RemoteContract) -> None:
        if urlsplit(contract.url).path:
            raise PolicyError(f'the url of a groot policy has no path, got {contract.url!r}')
        if not contract.task:
            raise PolicyError(
                'the contract file of a groot policy needs task, the key of the language, such as '
                'annotation.human.task_description'
            )

    @staticmethod
    def check_metadata(metadata: dict[str, Any], contract: RemoteContract) -> None:
        """Compare the modalities of the server with those of the contract file."""
        for modality, field, keys in (
            ('video', 'images', contract.images),
            ('state', 'state', contract.state),
            ('language', 'task', [contract.task]),
            ('action', 'actions', contract.actions),
        ):
            told = metadata.get(modality)
            theirs = told.get('modality_keys') if isinstance(told, dict) else None
            steps = told.get('delta_indices') if isinstance(told, dict) else None
            if theirs is None and modality not in metadata:
                continue
            if not isinstance(theirs, list) or sorted(map(str, theirs)) != sorted(keys):
                raise PeerChanged(
                    f'its {modality} keys are {theirs!r:.200}, {field} of the contract file has '
                    f'{[*keys]}; correct the file'
                )
            expected = contract.chunk_steps if modality == 'action' else 1
            if not isinstance(steps, list) or len(steps) != expected:
                raise PeerChanged(
                    f'its {modality} has {steps!r:.120} as delta_indices, '
                    + (
                        f'chunk_steps of the contract file is {expected}; correct the file'
                        if modality == 'action'
                        else 'only policies that read one time step are supported'
                    )
                )

    async def connect(self) -> dict[str, Any]:
        # of the process: the end of a context waits for its sockets
        socket = self._socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, self._contract.max_reply_bytes)
        # a lost connection is replaced by another socket, which asks for the metadata first
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        self._lost = asyncio.get_running_loop().create_future()
        self._monitor = asyncio.create_task(self._watch(socket.get_monitor_socket(ENDED)))
        socket.connect(self._contract.url)
        config = await self._call('get_modality_config')
        if not isinstance(config, dict):
            raise BadReply(f'get_modality_config must be a map, got {config!r:.80}')
        return config

    async def predict(self, observation: PeerObservation) -> PeerReply:
        request = {'observation': request_of(observation, self._contract), 'options': None}
        reply = await self._call('get_action', request)
        actions = reply[0] if isinstance(reply, list) and reply else reply
        if not isinstance(actions, dict):
            raise BadReply(f'the reply must be a list of actions and info, got {reply!r:.80}')
        return PeerReply(assembled_actions(actions, self._contract))

    async def close(self) -> None:
        if self._monitor:
            self._monitor.cancel()
            await asyncio.wait([self._monitor])
        if self._socket:
            self._socket.disable_monitor()
            self._socket.close(linger=0)

    async def _call(self, endpoint: str, data: dict[str, Any] | None = None) -> Any:
        """Return the reply of an endpoint. Raises PeerError and PeerFormatError."""
        request: dict[str, Any] = {'endpoint': endpoint}
        if data is not None:
            request['data'] = data
        if self._contract.api_key:
            request['api_token'] = self._contract.api_key
        if self._socket is None:
            raise PeerUnavailable('not connected')
        # the empty frame is that of a REQ socket
        await self._first_of(self._socket.send_multipart([b'', pack_groot(request)]))
        frames: list[bytes] = await self._first_of(self._socket.recv_multipart())
        if len(frames) != 2 or frames[0]:
            raise BadReply(f'the reply must be one frame, got {len(frames)}')
        if frames[1] == b'ERROR':
            raise PeerRefused('replied ERROR')
        content = unpack_groot(frames[1])
        if isinstance(content, dict) and 'error' in content:
            raise PeerRefused(f'{content["error"]!s:.{SHOWN_CHARACTERS}}')
        return content

    async def _first_of(self, step: Awaitable[Any]) -> Any:
        """Return the result of a step, unless the connection ends first: PeerUnavailable."""
        running = asyncio.ensure_future(step)
        try:
            await asyncio.wait([running, self._lost], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise PeerUnavailable(self._lost.result())
            return running.result()
        finally:
            running.cancel()

    async def _watch(self, events: zmq.asyncio.Socket) -> None:
        """Report the end of the connection; a message over the limit ends it, too."""
        await events.recv_multipart()
        reason = (
            'no connection, or it ended (refused, closed, or a reply over '
            f'max_reply_mb, {self._contract.max_reply_mb} MB)'
        )
        self._lost.set_result(reason)
        self._on_lost(reason)


def request_of(observation: PeerObservation, contract: RemoteContract) -> dict[str, Any]:
    """Return the observation under the keys of the server; one batch, one time step."""
    states = state_parts(observation.state, contract)
    return {
        'video': {
            key: observation.images[camera][None, None] for key, camera in contract.images.items()
        },
        'state': {key: np.ascontiguousarray(v[None, None]) for key, v in states.items()},
        'language': {contract.task: [[observation.task]]},
    }


def load(options: LoadOptions) -> RemotePolicy:
    """Return the policy of a contract file. Raises PolicyError."""
    return load_remote(GrootPeer, options)
