# SPDX-License-Identifier: Apache-2.0
"""
A policy that a remote server runs. The server is asked for one request at a time; it must keep no
state between requests, because the sessions of this policy share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.policies.base import (
    LoadOptions,
    PolicyDescription,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.option_checks import check_no_torch_options, check_options_match
from lerobot_serve.policies.remote.address import check_address, is_exposed
from lerobot_serve.policies.remote.connection import PeerConnection
from lerobot_serve.policies.remote.contract_file import read_contract, RemoteContract
from lerobot_serve.policies.remote.metadata import check_reported, identity, selected
from lerobot_serve.policies.remote.peer import BadReply, named, Peer, PeerObservation, PeerReply
from lerobot_serve.policies.runtime.request_inputs import newest_image, newest_state

NO_METADATA = (
    'the remote server says nothing of its policy: name and version in the contract file identify '
    'it, and a change of the policy at the same address is not detected'
)


class RemotePolicy:
    """See the module. One thread at a time."""

    def __init__(
        self, description: PolicyDescription, connection: PeerConnection, where: str
    ) -> None:
        self._description, self._connection, self._where = description, connection, where

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """Return one prediction each. Raises PolicyError, PeerError."""
        return [self._predict_one(request) for request in requests]

    def reset(self, session_id: str) -> None:
        pass

    def close(self) -> None:
        """Close the connection to the server; `predict` is refused from now on."""
        self._connection.close()

    def _predict_one(self, request: PolicyRequest) -> Prediction:
        own = self._description
        observation = PeerObservation(
            newest_state(request, len(own.state_names)),
            {camera.name: newest_image(request, camera.name) for camera in own.cameras},
            request.task,
            f'{request.session_id}/{request.episode}',
        )
        reply = self._connection.predict(observation)
        chunk = self._checked(reply)
        return Prediction(chunk, chunk, forward_ms=reply.forward_ms)

    def _checked(self, reply: PeerReply) -> Float32Array:
        """Return the chunk; NaN stays in it, for the server to refuse. Raises BadReply."""
        own, actions = self._description, reply.actions
        shape = (own.chunk_size, len(own.action_names))
        if actions.shape != shape or actions.dtype.kind not in 'iuf':
            raise BadReply(
                f'{self._where}: the chunk must be {shape[0]} steps x {shape[1]} actions, as in '
                f'the contract file, got {actions.shape} of {actions.dtype}'
            )
        with np.errstate(over='ignore'):
            return np.asarray(actions, np.float32)


def load_remote(peer: type[Peer], options: LoadOptions) -> RemotePolicy:
    """Read the contract file `options.path`, connect and return the policy. Raises PolicyError."""
    check_no_torch_options(options, peer.kind)
    contract = read_contract(options.path, peer.contract_file, peer.image_prefix)
    check_address(contract, peer.kind, *peer.schemes)
    peer.check(contract)
    where = f'{peer.kind} server {contract.url}'
    connection = PeerConnection(
        where,
        partial(peer, contract),
        connect_timeout_s=contract.connect_timeout_s,
        predict_timeout_s=contract.predict_timeout_s,
        select=lambda metadata: selected(metadata, contract.metadata_keys),
    )
    metadata = connection.start()
    try:
        with named(where):
            check_reported(metadata, contract)
            peer.check_metadata(metadata, contract)
        known = selected(metadata, contract.metadata_keys)
        description = _description(peer.kind, contract, known, options)
        check_options_match(options, description)
    except BaseException:
        connection.close()
        raise
    return RemotePolicy(description, connection, where)


def _description(
    kind: str, contract: RemoteContract, metadata: dict[str, Any], options: LoadOptions
) -> PolicyDescription:
    return PolicyDescription(
        policy_type=kind,
        fingerprint=identity(kind, contract, metadata, options.name),
        state_names=contract.state_names,
        action_names=contract.action_names,
        cameras=contract.cameras,
        chunk_size=contract.chunk_steps,
        trained_fps=contract.control_hz,
        device='remote',
        batch_limit=1,
        notes=tuple(_notes(contract, metadata)),
    )


def _notes(contract: RemoteContract, metadata: dict[str, Any]) -> Iterator[str]:
    if not metadata:
        yield NO_METADATA
    if is_exposed(contract):
        yield f'the api key of {contract.url} crosses the network unencrypted'
