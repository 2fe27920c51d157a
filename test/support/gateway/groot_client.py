# SPDX-License-Identifier: Apache-2.0
"""
A client written after GR00T's PolicyClient: a REQ socket, numpy's own npy, no code of the package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import zmq

from support.policies.remote_peers import pack_npy, unpack_npy

LIMIT_MS = 20_000


@dataclass
class ModalityConfig:
    """The fields that GR00T's class has, so that an unknown one is an error here, too."""

    delta_indices: list[int]
    modality_keys: list[str]
    sin_cos_embedding_keys: list[str] | None = None
    mean_std_embedding_keys: list[str] | None = None
    action_configs: list[Any] | None = None


class GrootClient:
    """Used by one thread."""

    def __init__(self, address: str, api_token: str = '', fields: str = 'as_json') -> None:
        self._context, self._token, self._fields = zmq.Context(), api_token, fields
        self.socket = self._context.socket(zmq.REQ)
        self.socket.setsockopt(zmq.RCVTIMEO, LIMIT_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(address)

    def close(self) -> None:
        self.socket.close()
        self._context.term()

    def exchange(self, request: bytes) -> Any:
        """Send bytes and return what is in the reply."""
        self.socket.send(request)
        return msgpack.unpackb(self.socket.recv(), object_hook=self._unpacked)

    def call(self, endpoint: str, data: dict[str, Any] | None = None) -> Any:
        """Return the reply of an endpoint. Raises RuntimeError for an error, as GR00T's does."""
        request: dict[str, Any] = {'endpoint': endpoint}
        if data is not None:
            request['data'] = data
        if self._token:
            request['api_token'] = self._token
        response = self.exchange(msgpack.packb(request, default=pack_npy))
        if isinstance(response, dict) and 'error' in response:
            raise RuntimeError(f'Server error: {response["error"]}')
        return response

    def get_action(self, observation: Any, options: Any = None) -> tuple[Any, ...]:
        return tuple(self.call('get_action', {'observation': observation, 'options': options}))

    def _unpacked(self, value: dict[str, Any]) -> Any:
        if '__ModalityConfig_class__' in value:
            return ModalityConfig(**value[self._fields])
        return unpack_npy(value)


def observation(*values: float, task: str = 'lift the cube') -> dict[str, Any]:
    """Return an observation for the example contract, in its own names."""
    names = ('joint_1.pos', 'joint_2.pos', 'gripper.pos')
    state = values or (0.0, 1.0, 2.0)
    return {
        'video': {'front': np.full((1, 1, 48, 64, 3), 7, np.uint8)},
        'state': {
            name: np.array([[[v]]], np.float32) for name, v in zip(names, state, strict=True)
        },
        'language': {'annotation.human.task_description': [[task]]},
    }
