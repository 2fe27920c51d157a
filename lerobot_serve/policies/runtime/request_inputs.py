# SPDX-License-Identifier: Apache-2.0
"""Return the newest state and image of a request, checked. Any thread."""

from __future__ import annotations

import numpy as np

from lerobot_serve.policies.base import PolicyError, PolicyRequest


def newest_state(request: PolicyRequest, count: int) -> np.ndarray:
    """Return the present state, `count` values of float32. Raises PolicyError."""
    if request.state.ndim != 2 or request.state.shape[1] != count or not len(request.state):
        raise PolicyError(f'state must be steps x {count}, got {request.state.shape}')
    return request.state[-1].astype(np.float32)


def newest_image(request: PolicyRequest, name: str) -> np.ndarray:
    """Return the present frame of a camera, height x width x 3 of uint8. Raises PolicyError."""
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
