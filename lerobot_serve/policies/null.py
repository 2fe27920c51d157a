"""
A policy without a model: it answers at once, and ramps away from the state it was shown.

Measures the transport, and stands in for a model in tests. Its "path" is its shape, for example
"joints=6,chunk=100,cameras=front:480x640+wrist:480x640,fps=30".
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from lerobot_serve.policies.base import (
    Camera,
    Description,
    Loading,
    PolicyError,
    PolicyRequest,
    Prediction,
)

DEFAULT = 'joints=6,chunk=100,cameras=,fps=30'
SHAPE = re.compile(r'joints=(\d+),chunk=(\d+),cameras=([^,]*),fps=(\d+(?:\.\d+)?)')
CAMERA = re.compile(r'(\w+):(\d+)x(\d+)')


class NullPolicy:
    """See the module. Holds no state; any thread."""

    def __init__(self, text: str) -> None:
        shape = SHAPE.fullmatch(text)
        cameras = (
            [CAMERA.fullmatch(part) for part in filter(None, shape[3].split('+'))]
            if shape
            else [None]
        )
        if not shape or not all(cameras):
            raise PolicyError(
                f'the path of a null policy is its shape, for example {DEFAULT!r}, got {text!r}'
            )
        if not all(float(shape[i]) for i in (1, 2, 4)):
            raise PolicyError(f'joints, chunk and fps must be above 0, got {text!r}')
        names = tuple(f'joint_{i}.pos' for i in range(int(shape[1])))
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._ramp = np.linspace(0, 0.01, int(shape[2]), dtype=np.float32)[:, None]
        self._description = Description(
            'null',
            f'null@{digest}',
            names,
            names,
            tuple(Camera(f'observation.images.{c[1]}', int(c[2]), int(c[3])) for c in cameras),
            int(shape[2]),
            float(shape[4]),
        )

    def describe(self) -> Description:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        chunks = [request.state[-1] + self._ramp for request in requests]
        return [Prediction(chunk, chunk) for chunk in chunks]

    def reset(self, session_id: str) -> None:
        pass


def load(loading: Loading) -> NullPolicy:
    """Return the policy of the shape `loading.path`. Raises PolicyError."""
    return NullPolicy(loading.path or DEFAULT)
