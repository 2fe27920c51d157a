# SPDX-License-Identifier: Apache-2.0
"""
What policies need of a request and of its session: the checked newest state and image, an empty
request, and hidden states by session, of which the least recently kept are discarded.

Inference thread; the functions any thread. `take` changes nothing, so that a failed prediction
leaves every state unchanged; the policy keeps the new states after a successful one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

import numpy as np

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.policies.base import PolicyDescription, PolicyError, PolicyRequest

T = TypeVar('T')


def blank_request(
    session_id: str, description: PolicyDescription, *, task: str = '', seed: int = 0
) -> PolicyRequest:
    """Return a request of zeros and black frames, in the shapes that the policy expects."""
    steps = description.observation_steps
    images: dict[str, tuple[FrameArray, ...]] = {
        c.name: (np.zeros((c.height, c.width, c.channels), np.uint8),) * steps
        for c in description.cameras
    }
    state = np.zeros((steps, len(description.state_names)), np.float32)
    return PolicyRequest(session_id, state, images, task=task, episode_start=True, seed=seed)


def newest_state(request: PolicyRequest, count: int) -> Float32Array:
    """Return the newest state, `count` values of float32. Raises PolicyError."""
    if request.state.ndim != 2 or request.state.shape[1] != count or not len(request.state):
        raise PolicyError(f'state must be steps x {count}, got {request.state.shape}')
    state: Float32Array = request.state[-1].astype(np.float32)
    return state


def newest_image(request: PolicyRequest, name: str) -> FrameArray:
    """Return the newest frame of a camera, height x width x 3 of uint8. Raises PolicyError."""
    frames = request.images.get(name)
    if not frames:
        raise PolicyError(f'the image {name!r} is missing; send it with every observation')
    image = frames[-1]
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8 or not image.size:
        raise PolicyError(
            f'the image {name!r} must be height x width x 3 of uint8, '
            f'got {image.shape} of {image.dtype}'
        )
    return image


class SessionStates(Generic[T]):
    """The hidden states of a recurrent policy; see the module."""

    def __init__(self, limit: int) -> None:
        """Keep at most `limit` sessions. Raises ValueError if that is below 1."""
        if limit < 1:
            raise ValueError(f'state_limit must be at least 1, got {limit}')
        self._limit = limit
        self._kept: OrderedDict[str, tuple[int, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, session_id: str, episode: int, episode_start: bool) -> tuple[T | None, bool]:
        """
        Return the state to continue with, None for a new one, and whether a state is lost.

        The start of an episode, or a change of episode, needs a new state. A state is lost if the
        request continues an episode without a kept state.
        """
        if episode_start:
            return None, False
        if session_id not in self._kept:
            return None, True
        kept_episode, state = self._kept[session_id]
        return (state if kept_episode == episode else None), False

    def keep(self, session_id: str, episode: int, state: T) -> None:
        """Keep the state after a prediction; discard the least recent one above the limit."""
        self._kept[session_id] = (episode, state)
        self._kept.move_to_end(session_id)
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def discard(self, session_id: str) -> None:
        """Discard the state of a session, if there is one."""
        self._kept.pop(session_id, None)
