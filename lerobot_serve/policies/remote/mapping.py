# SPDX-License-Identifier: Apache-2.0
"""Move values between the keys of a remote server and the order of the contract. Any thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array
from lerobot_serve.policies.remote.contract_file import RemoteContract
from lerobot_serve.policies.remote.peer import BadReply

INSIDE = '>'


def state_parts(state: Float32Array, contract: RemoteContract) -> dict[str, Float32Array]:
    """Return the state values of each key of the server."""
    return {key: state[list(positions)] for key, positions in contract.state.items()}


def put(target: dict[str, Any], key: str, value: Any) -> None:
    """Set a value under a key; `images>cam_high` is cam_high in the map images."""
    *folders, last = key.split(INSIDE)
    for folder in folders:
        target = target.setdefault(folder, {})
    target[last] = value


def assembled_actions(parts: Mapping[Any, Any], contract: RemoteContract) -> NDArray[Any]:
    """
    Return steps x actions in the order of the contract; a leading batch of 1 is removed. Raises
    BadReply.
    """
    chunk: NDArray[Any] | None = None
    for key, columns in contract.actions.items():
        part = _part(parts, key)
        if part.ndim == 3 and len(part) == 1:
            part = part[0]
        if part.shape != (contract.chunk_steps, len(columns)) or part.dtype.kind not in 'iuf':
            raise BadReply(
                f'{key!r} must be {contract.chunk_steps} steps x {len(columns)} actions, '
                f'as in the contract file, got {part.shape} of {part.dtype}'
            )
        if chunk is None:
            chunk = np.empty((contract.chunk_steps, len(contract.action_names)))
        chunk[:, list(columns)] = part
    return np.empty((0, 0)) if chunk is None else chunk


def _part(parts: Mapping[Any, Any], key: str) -> NDArray[Any]:
    found = parts.get(key)
    if isinstance(found, np.ndarray):
        return found
    raise BadReply(f'the reply has no array {key!r}, but {", ".join(map(str, parts))[:200]}')
