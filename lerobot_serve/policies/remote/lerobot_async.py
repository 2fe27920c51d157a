# SPDX-License-Identifier: Apache-2.0
"""
The kind `lerobot_async`: a policy that LeRobot's AsyncInference server runs.

That server loads what its client names, keeps one observation, and says nothing of its policy.
Each observation is marked `must_go`, because it would drop those that resemble the last one. Its
pickles are read without executing anything. Event loop of the thread `remote peer`; gRPC calls
back in threads of its own, because its asyncio interface keeps a thread and a loop for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
import contextlib
from pathlib import Path
import time
from typing import Any
from urllib.parse import urlsplit

import grpc
from msgspec import UNSET, UnsetType
import numpy as np

from lerobot_serve.peer_formats.lerobot_messages import observation_pieces, read_data, write_data
from lerobot_serve.peer_formats.safe_pickle import (
    read_actions,
    write_observation,
    write_policy_config,
)
from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.remote.contract_file import RemoteContract, Text
from lerobot_serve.policies.remote.peer import (
    BadReply,
    Peer,
    PeerError,
    PeerObservation,
    PeerRefused,
    PeerReply,
    PeerUnavailable,
    SHOWN_CHARACTERS,
)
from lerobot_serve.policies.remote.policy import load_remote, RemotePolicy

SERVICE = '/transport.AsyncInference/'
CAMERA_PREFIX = 'observation.images.'
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class LerobotContractFile(RemoteContract, frozen=True, kw_only=True):
    """With the fields of this protocol."""

    policy_type: Text | UnsetType = UNSET
    pretrained_name_or_path: Text | UnsetType = UNSET
    policy_device: Text | UnsetType = UNSET


class LerobotAsyncPeer(Peer):
    """See the module."""

    kind, schemes, contract_file = 'lerobot_async', ('grpc', 'grpcs'), LerobotContractFile

    def __init__(self, contract: RemoteContract, on_lost: Callable[[str], None]) -> None:
        super().__init__(contract, on_lost)
        self._channel: grpc.Channel | None = None
        self._loop = asyncio.get_running_loop()
        self._timestep = 0
        key = contract.api_key
        self._metadata = (('authorization', f'Bearer {key}'),) if key else ()

    @staticmethod
    def check(contract: RemoteContract) -> None:
        for field in ('policy_type', 'pretrained_name_or_path'):
            if field not in contract.options:
                raise PolicyError(
                    f'the contract file of a lerobot_async policy needs {field}: the server loads '
                    'what its client names'
                )
        if contract.metadata_keys:
            raise PolicyError('metadata_keys has no effect: a LeRobot server has no metadata')

    async def connect(self) -> dict[str, Any]:
        """Let the server load the policy; it has no metadata to return."""
        self._channel = _channel(self._contract)
        await self._call('Ready', b'')
        config = write_policy_config(_policy_config(self._contract))
        await self._call('SendPolicyInstructions', write_data(config))
        return {}

    async def predict(self, observation: PeerObservation) -> PeerReply:
        self._timestep += 1
        pickled = write_observation(
            _raw_observation(observation, self._contract),
            timestamp=time.time(),
            timestep=self._timestep,
            must_go=True,
        )
        await self._upload(pickled)
        reply = await self._call('GetActions', b'')
        data = read_data(reply)
        timed = read_actions(data) if data else []
        if not timed:
            # also what a server says that was restarted: gRPC connects to it, and it has no policy
            raise BadReply(
                'replied without actions: its policy failed, or another client took its place; '
                'see its log'
            )
        if [each.timestep - self._timestep for each in timed] != [*range(len(timed))]:
            raise BadReply(
                f'replied with the steps {timed[0].timestep} to {timed[-1].timestep}, the '
                f'observation was {self._timestep}'
            )
        rows = [each.action.reshape(-1) for each in timed]
        if len({row.shape for row in rows}) > 1:
            raise BadReply('its actions have different lengths')
        return PeerReply(np.stack(rows))

    async def close(self) -> None:
        if self._channel:
            self._channel.close()

    async def _call(self, method: str, message: bytes) -> bytes:
        """Return the reply of one method. Raises PeerError."""
        call = self._opened().unary_unary(SERVICE + method)
        return await self._result(call.future(message, metadata=self._metadata))

    async def _upload(self, pickled: bytes) -> None:
        call = self._opened().stream_unary(SERVICE + 'SendObservations')
        pieces = observation_pieces(pickled)
        await self._result(call.future(pieces, metadata=self._metadata))

    async def _result(self, running: Any) -> bytes:
        """Return the result of a call, which ends with this coroutine."""
        done = asyncio.Event()
        running.add_done_callback(lambda _: self._in_loop(done.set))
        try:
            await done.wait()
        finally:
            running.cancel()
        try:
            reply: bytes = running.result()
        except grpc.FutureCancelledError:
            raise PeerUnavailable('closed') from None
        except grpc.RpcError:
            raise self._error(running.code(), running.details()) from None
        return reply

    def _in_loop(self, step: Callable[[], object]) -> None:
        """Run a step in the event loop; called by threads of gRPC, also after its end."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(step)

    def _opened(self) -> grpc.Channel:
        if self._channel is None:
            raise PeerUnavailable('not connected')
        return self._channel

    def _error(self, code: grpc.StatusCode, details: str | None) -> PeerError:
        text = ' '.join((details or 'no text').split())[:SHOWN_CHARACTERS]
        if code in LOST:
            return PeerUnavailable(text)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return BadReply(f'{text} (max_reply_mb is {self._contract.max_reply_mb} MB)')
        return PeerRefused(f'{code.name}: {text}')


def _channel(contract: RemoteContract) -> grpc.Channel:
    """Return a channel that is not connected yet. Raises PolicyError."""
    options = [
        ('grpc.max_receive_message_length', contract.max_reply_bytes),
        ('grpc.max_send_message_length', -1),
        ('grpc.enable_retries', 0),
        ('grpc.enable_http_proxy', 0),
        # an idle connection stays open: opening it again loads the policy again
        ('grpc.client_idle_timeout_ms', 2**31 - 1),
        # channels with equal options would share a connection
        ('grpc.use_local_subchannel_pool', 1),
    ]
    parts = urlsplit(contract.url)
    if parts.scheme == 'grpcs':
        return grpc.secure_channel(parts.netloc, _credentials(contract), options)
    return grpc.insecure_channel(parts.netloc, options)


def _credentials(contract: RemoteContract) -> grpc.ChannelCredentials:
    files = contract.tls
    try:
        authority, key, certificate = (
            Path(name).read_bytes() if name else None
            for name in (files.authority, files.key, files.certificate)
        )
    except OSError as error:
        raise PolicyError(f'the TLS files of {contract.url} cannot be used: {error}') from None
    return grpc.ssl_channel_credentials(authority, key, certificate)


def _policy_config(contract: RemoteContract) -> dict[str, Any]:
    """Return the fields of a RemotePolicyConfig."""
    states = list(contract.state_names)
    features: dict[str, Any] = {
        'observation.state': {'dtype': 'float32', 'shape': (len(states),), 'names': states}
    }
    for camera in contract.cameras:
        features[CAMERA_PREFIX + camera.name.removeprefix(CAMERA_PREFIX)] = {
            'dtype': 'image',
            'shape': (camera.height, camera.width, camera.channels),
            'names': ['height', 'width', 'channels'],
        }
    options = contract.options
    return {
        'policy_type': options['policy_type'],
        'pretrained_name_or_path': options['pretrained_name_or_path'],
        'lerobot_features': features,
        'actions_per_chunk': contract.chunk_steps,
        'device': options.get('policy_device', 'cpu'),
        'rename_map': {},
    }


def _raw_observation(observation: PeerObservation, contract: RemoteContract) -> dict[str, Any]:
    """Return an observation as a LeRobot robot gives it."""
    raw: dict[str, Any] = dict(zip(contract.state_names, observation.state.tolist(), strict=True))
    for name, image in observation.images.items():
        raw[name.removeprefix(CAMERA_PREFIX)] = image
    return raw | {'task': observation.task}


def load(options: LoadOptions) -> RemotePolicy:
    """Return the policy of a contract file. Raises PolicyError."""
    return load_remote(LerobotAsyncPeer, options)
