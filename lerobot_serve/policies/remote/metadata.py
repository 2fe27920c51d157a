# SPDX-License-Identifier: Apache-2.0
"""
What a remote server says of its policy: the fingerprint over it, and its comparison with the
contract. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
import hashlib
import json
from typing import Any

import numpy as np

from lerobot_serve.policies.remote.contract_file import RemoteContract
from lerobot_serve.policies.remote.peer import PeerChanged

SHOWN_DIGITS = 16
# fields of a contract that some servers report under the same name
REPORTED = ('state_names', 'action_names', 'chunk_steps', 'control_hz')


def digest_of(metadata: Mapping[str, Any]) -> str:
    """Return a hash that depends on the values only, not on the order of keys."""
    text = json.dumps(_plain(metadata), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def identity(kind: str, contract: RemoteContract, metadata: Mapping[str, Any], name: str) -> str:
    """
    Return NAME@HASH. The address is not a part of it: two servers of one policy are two replicas.
    """
    told = {
        'kind': kind,
        'name': contract.name,
        'version': contract.version,
        'state': [contract.state_names, contract.state],
        'actions': [contract.action_names, contract.actions],
        'images': [[(c.name, c.height, c.width) for c in contract.cameras], contract.images],
        'chunk': [contract.chunk_steps, contract.control_hz],
        'task': contract.task,
        'options': contract.options,
        'metadata': metadata,
    }
    return f'{name or contract.name}@{digest_of(told)[:SHOWN_DIGITS]}'


def selected(metadata: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """Return the part that identifies the policy. Raises PeerChanged for a missing key."""
    if missing := [key for key in keys if key not in metadata]:
        raise PeerChanged(
            f'the metadata has no {missing[0]!r}, which metadata_keys names; it has '
            f'{", ".join(sorted(map(str, metadata))) or "nothing"}'
        )
    return {key: metadata[key] for key in keys} if keys else metadata


def check_reported(metadata: Mapping[str, Any], contract: RemoteContract) -> None:
    """Raise PeerChanged if a field that the server reports differs from the contract."""
    # a gateway's openpi door has them in a map of its own
    ours = metadata.get('lerobot_serve')
    reported = {**metadata, **ours} if isinstance(ours, Mapping) else metadata
    for field in REPORTED:
        said, written = reported.get(field), getattr(contract, field)
        said = tuple(said) if isinstance(said, list) else said
        if said is not None and said != written:
            raise PeerChanged(
                f'the server reports {field} {said!r:.200}, the contract file has '
                f'{written!r:.200}; correct the file'
            )


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold; equal values become equal."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        data = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        return ['array', value.dtype.str, list(value.shape), data]
    if isinstance(value, (bytes, memoryview)):
        return ['bytes', value.hex()]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return repr(value)
