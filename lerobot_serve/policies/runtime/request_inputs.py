# SPDX-License-Identifier: Apache-2.0
"""Return the checked newest state and image of a request; build an empty request. Any thread."""

from __future__ import annotations

import numpy as np

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.policies.base import PolicyDescription, PolicyError, PolicyRequest


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
