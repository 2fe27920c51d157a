# SPDX-License-Identifier: Apache-2.0
"""
A policy without a model: predicts immediately a ramp from the observed state.

Measures the transport, and replaces a model in tests. Its "path" is its shape, for example
"joints=6,chunk=100,cameras=front:480x640+wrist:480x640,fps=30"; other policies without a model
have one, too.
"""

from __future__ import annotations

import hashlib
import re

import numpy as np

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import (
    LoadOptions,
    PolicyCamera,
    PolicyDescription,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.option_checks import check_no_torch_options, check_options_match

DEFAULT = 'joints=6,chunk=100,cameras=,fps=30'
SHAPE = re.compile(r'joints=(\d+),chunk=(\d+),cameras=([^,]*),fps=(\d+(?:\.\d+)?)')
CAMERA = re.compile(r'(\w+):(\d+)x(\d+)')


def describe_shape(kind: str, options: LoadOptions, state_class: StateClass) -> PolicyDescription:
    """Return the description of a policy of the shape `options.path`. Raises PolicyError."""
    check_no_torch_options(options, kind)
    text = options.path or DEFAULT
    shape = SHAPE.fullmatch(text)
    parts = list(filter(None, shape[3].split('+'))) if shape else []
    cameras = [camera for part in parts if (camera := CAMERA.fullmatch(part))]
    if not shape or len(cameras) < len(parts):
        raise PolicyError(
            f'the path of a {kind} policy is its shape, for example {DEFAULT!r}, got {text!r}'
        )
    if not all(float(shape[i]) for i in (1, 2, 4)):
        raise PolicyError(f'joints, chunk and fps must be above 0, got {text!r}')
    names = tuple(f'joint_{i}.pos' for i in range(int(shape[1])))
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    description = PolicyDescription(
        policy_type=kind,
        fingerprint=f'{options.name or kind}@{digest}',
        state_names=names,
        action_names=names,
        cameras=tuple(
            PolicyCamera(f'observation.images.{c[1]}', int(c[2]), int(c[3])) for c in cameras
        ),
        chunk_size=int(shape[2]),
        trained_fps=float(shape[4]),
        state_class=state_class,
        any_thread=True,
    )
    check_options_match(options, description)
    return description


class NullPolicy:
    """See the module. Holds no state; any thread."""

    def __init__(self, description: PolicyDescription) -> None:
        self._description = description
        self._ramp = np.linspace(0, 0.01, description.chunk_size, dtype=np.float32)[:, None]

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        chunks = [request.state[-1] + self._ramp for request in requests]
        return [Prediction(chunk, chunk) for chunk in chunks]

    def reset(self, session_id: str) -> None:
        pass


def load(options: LoadOptions) -> NullPolicy:
    """Return the policy of the shape `options.path`. Raises PolicyError."""
    return NullPolicy(describe_shape('null', options, StateClass.CHUNK_STATELESS))
