# SPDX-License-Identifier: Apache-2.0
"""A policy for unit tests: predicts as the test defines, and records its calls. One thread."""

from __future__ import annotations

from collections.abc import Callable
import dataclasses

import numpy as np

from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyRequest, Prediction

JOINTS = ('pan.pos', 'lift.pos', 'grip.pos')
FAKE_DESCRIPTION = PolicyDescription(
    policy_type='fake',
    fingerprint='fake@0123456789abcdef',
    state_names=JOINTS,
    action_names=JOINTS,
    cameras=(PolicyCamera('observation.images.front', 8, 16),),
    chunk_size=4,
    trained_fps=30.0,
)


class FakePolicy:
    """
    Answers with `predict`, by default a chunk that stays where the robot is.

    `calls` holds what happened in order: the PolicyRequest of a prediction, the session id of a
    reset. `changes` are fields of the Description.
    """

    def __init__(
        self, predict: Callable[[PolicyRequest], object] | None = None, **changes: object
    ) -> None:
        self._description = dataclasses.replace(FAKE_DESCRIPTION, **changes)
        self._predict = predict or self.stay
        self.calls: list[PolicyRequest | str] = []

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        self.calls += requests
        return [self._predict(request) for request in requests]

    def reset(self, session_id: str) -> None:
        self.calls.append(session_id)

    def stay(self, request: PolicyRequest) -> Prediction:
        rows = self._description.chunk_size
        columns = len(self._description.action_names)
        chunk = np.resize(request.state[-1], (rows, columns)).astype(np.float32)
        return Prediction(chunk, chunk)
