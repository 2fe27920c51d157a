# SPDX-License-Identifier: Apache-2.0
"""
An Upstream without router and robot, for tests of doors and for users who write a client.

Answers each request with `actions(request)`. A test holds the answers back with `hold`, and lets
the server fail with `fail_with`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.gateway.callers.caller import Caller
from lerobot_serve.gateway.callers.predictions import (
    Prediction,
    PredictionError,
    PredictionRequest,
    Status,
)
from lerobot_serve.gateway.upstream import check_request, PolicyContract

EXAMPLE_CONTRACT = PolicyContract(
    policy='fake',
    fingerprint='fake@0123456789ab',
    state_names=('joint_1.pos', 'joint_2.pos', 'gripper.pos'),
    action_names=('joint_1.pos', 'joint_2.pos', 'gripper.pos'),
    cameras={'observation.images.front': (48, 64, 3)},
    chunk_steps=4,
    control_hz=30.0,
)


class FakeUpstream:
    """See the module. The event loop owns it."""

    def __init__(
        self,
        contract: PolicyContract = EXAMPLE_CONTRACT,
        actions: Callable[[PredictionRequest], Float32Array] | None = None,
    ) -> None:
        """`actions` default to the state, counted up by one in each step."""
        self.contract = contract
        self.actions = actions or self._counted_up
        # (client_id, request), in order of arrival
        self.requests: list[tuple[str, PredictionRequest]] = []
        self.open_sessions: dict[str, FakeSession] = {}
        self.opened = 0
        # of each session, in order; None for a caller without
        self.terms: list[OpenSessionRequest | None] = []
        self.fail_with: PredictionError | None = None
        self._released = asyncio.Event()
        self._released.set()

    def _counted_up(self, request: PredictionRequest) -> Float32Array:
        columns = len(self.contract.action_names)
        row = np.resize(request.state, columns) if request.state.size else np.zeros(columns)
        steps = np.arange(self.contract.chunk_steps or 1)[:, None]
        return (row[None, :] + steps).astype(np.float32)

    def hold(self) -> None:
        """Hold back all answers until `release`."""
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    async def wait_released(self) -> None:
        await self._released.wait()

    async def describe(self) -> PolicyContract:
        """Return the contract. Raises `fail_with`."""
        self._check()
        return self.contract

    async def open(self, caller: Caller, terms: OpenSessionRequest | None = None) -> FakeSession:
        """Open a session. Raises `fail_with`, and PredictionError for names of another policy."""
        self._check()
        if terms:
            self._check_terms(terms)
        self.terms.append(terms)
        session = FakeSession(self, caller.client_id)
        self.open_sessions[caller.client_id] = session
        self.opened += 1
        return session

    def _check_terms(self, terms: OpenSessionRequest) -> None:
        if terms.action_names != self.contract.action_names:
            raise PredictionError(
                Status.INVALID,
                f'action_names: the names or their order differ; requested '
                f'{list(terms.action_names)}, served {list(self.contract.action_names)}',
                refusal=Refusal.ACTION_NAMES,
            )

    def _check(self) -> None:
        if self.fail_with:
            raise self.fail_with

    async def close(self) -> None:
        for session in list(self.open_sessions.values()):
            await session.close()


class FakeSession:
    """The session of one caller."""

    def __init__(self, upstream: FakeUpstream, client_id: str) -> None:
        self._upstream, self.client_id = upstream, client_id
        self._sequence = 0

    @property
    def contract(self) -> PolicyContract:
        return self._upstream.contract

    async def predict(self, request: PredictionRequest) -> Prediction:
        """Answer a request. Raises PredictionError for a state or cameras of another policy."""
        upstream, contract = self._upstream, self.contract
        upstream.requests.append((self.client_id, request))
        await upstream.wait_released()
        if upstream.fail_with:
            raise upstream.fail_with
        check_request(request, contract)
        self._sequence += 1
        return Prediction(
            actions=upstream.actions(request),
            slot='prod',
            policy=contract.policy,
            fingerprint=contract.fingerprint,
            sequence=self._sequence,
            inference_ms=1.5,
            queue_wait_ms=0.25,
            episode_id=request.episode_id,
            processing_ms=0.5,
            superseded=2,
        )

    async def close(self) -> None:
        self._upstream.open_sessions.pop(self.client_id, None)
