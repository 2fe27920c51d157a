"""The policies without a model: their "path" is their shape, written as in DEFAULT. Any thread."""

from __future__ import annotations

import hashlib
import re

from lerobot_serve.policies.agreement import agree, without_torch
from lerobot_serve.policies.base import Camera, Description, Loading, PolicyError
from lerobot_serve.wire.schema import StateClass

DEFAULT = 'joints=6,chunk=100,cameras=,fps=30'
SHAPE = re.compile(r'joints=(\d+),chunk=(\d+),cameras=([^,]*),fps=(\d+(?:\.\d+)?)')
CAMERA = re.compile(r'(\w+):(\d+)x(\d+)')


def described(kind: str, loading: Loading, state_class: StateClass) -> Description:
    """Return what a policy of the shape `loading.path` says of itself. Raises PolicyError."""
    without_torch(loading, kind)
    text = loading.path or DEFAULT
    shape = SHAPE.fullmatch(text)
    cameras = (
        [CAMERA.fullmatch(part) for part in filter(None, shape[3].split('+'))] if shape else [None]
    )
    if not shape or not all(cameras):
        raise PolicyError(
            f'the path of a {kind} policy is its shape, for example {DEFAULT!r}, got {text!r}'
        )
    if not all(float(shape[i]) for i in (1, 2, 4)):
        raise PolicyError(f'joints, chunk and fps must be above 0, got {text!r}')
    names = tuple(f'joint_{i}.pos' for i in range(int(shape[1])))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    description = Description(
        kind,
        f'{loading.name or kind}@{digest}',
        names,
        names,
        tuple(Camera(f'observation.images.{c[1]}', int(c[2]), int(c[3])) for c in cameras),
        int(shape[2]),
        float(shape[4]),
        state_class,
    )
    agree(loading, description)
    return description
