# SPDX-License-Identifier: Apache-2.0
"""
A recurrent policy without a model: each chunk ramps from the observed state towards the average
state of the episode.

Replaces a recurrent model in demo and tests: a lost hidden state, or that of another session,
changes the numbers. Its "path" is its shape, as for the kind null.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.schema import StateClass
from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyRequest, Prediction
from lerobot_serve.policies.runtime.request_inputs import newest_state, SessionStates
from lerobot_serve.policies.synthetic.null import describe_shape

NEWEST_WEIGHT = np.float32(0.25)


@dataclass(frozen=True, slots=True, eq=False)
class RecurrentState:
    """The hidden state of an episode: the average of its states, and their number."""

    average: Float32Array
    seen: int

    def after(self, state: Float32Array) -> RecurrentState:
        """Return the hidden state after this state."""
        return RecurrentState(self.average + NEWEST_WEIGHT * (state - self.average), self.seen + 1)


class RecurrentPolicy:
    """See the module. Owned by the inference worker."""

    def __init__(self, description: PolicyDescription, state_limit: int) -> None:
        self._description = description
        self._ramp = np.linspace(0, 1, description.chunk_size, dtype=np.float32)[:, None]
        self._states: SessionStates[RecurrentState] = SessionStates(state_limit)

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """Return one prediction each. Raises PolicyError for a wrong state and changes nothing."""
        answers = [self._predict_one(request) for request in requests]
        for request, (_, hidden) in zip(requests, answers, strict=True):
            self._states.keep(request.session_id, request.episode, hidden)
        return [prediction for prediction, _ in answers]

    def reset(self, session_id: str) -> None:
        self._states.discard(session_id)

    def _predict_one(self, request: PolicyRequest) -> tuple[Prediction, RecurrentState]:
        state = newest_state(request, len(self._description.state_names))
        before, lost = self._states.take(
            request.session_id, request.episode, request.episode_start
        )
        hidden = before.after(state) if before else RecurrentState(state, 1)
        # the ramp moves further towards the average in a longer episode
        reach = np.float32(hidden.seen / (hidden.seen + 1))
        chunk = state + self._ramp * reach * (hidden.average - state)
        found = before is not None
        return Prediction(chunk, chunk, state_lost=lost, state_found=found), hidden


def load(options: LoadOptions) -> RecurrentPolicy:
    """Return the policy of the shape `options.path`. Raises PolicyError."""
    description = describe_shape('recurrent', options, StateClass.RECURRENT)
    return RecurrentPolicy(description, options.state_limit)
