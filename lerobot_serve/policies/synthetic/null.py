# SPDX-License-Identifier: Apache-2.0
"""
A policy without a model: predicts immediately a ramp from the observed state.

Measures the transport, and replaces a model in tests. Its "path" is its shape, for example
"joints=6,chunk=100,cameras=front:480x640+wrist:480x640,fps=30".
"""

from __future__ import annotations

import numpy as np

from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyRequest, Prediction
from lerobot_serve.policies.synthetic.shape import describe_shape


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
