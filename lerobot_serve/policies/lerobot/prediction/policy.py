# SPDX-License-Identifier: Apache-2.0
"""
A LeRobot policy that serves several sessions.

Each session has its own processors and, if the policy has one, its own hidden state; the network
is shared and stateless between two calls. Owned by the inference worker.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from functools import partial
import time
from typing import Any

from msgspec import structs
import numpy as np
import torch

from lerobot_serve.arrays import Float32Array
from lerobot_serve.policies.base import (
    CacheCounts,
    PolicyDescription,
    PolicyError,
    PolicyRequest,
    Prediction,
)
from lerobot_serve.policies.lerobot.description import RTC_OFF_NOTE
from lerobot_serve.policies.lerobot.policy_types import PolicyTypeSpec
from lerobot_serve.policies.lerobot.prediction.image_embeddings import ImageEmbeddingCache
from lerobot_serve.policies.lerobot.prediction.network_inference import (
    ExternalInference,
    make_guidance,
    make_inference,
    ObservationBuilder,
    Row,
    RtcGuidance,
    TdmpcInference,
    tensor_shapes,
)
from lerobot_serve.policies.lerobot.prediction.processors import (
    ProcessorPair,
    ProcessorPairFactory,
)
from lerobot_serve.policies.runtime.request_inputs import blank_request, SessionStates
from lerobot_serve.policies.runtime.seeds import seeded_random

TRIAL_SESSION = 'trial'


@dataclass(frozen=True, slots=True)
class SessionMemory:
    """The state of one session."""

    pair: ProcessorPair
    plan: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """One request, ready for the network."""

    request: PolicyRequest
    memory: SessionMemory
    is_episode_start: bool
    lost: bool
    history: list[Row]
    guidance: RtcGuidance


class LeRobotPolicy:
    """See the module."""

    def __init__(
        self,
        network: Any,
        processors: ProcessorPairFactory,
        description: PolicyDescription,
        *,
        resizes: bool,
        state_limit: int,
        precision: torch.dtype | None = None,
        image_cache: ImageEmbeddingCache | None = None,
    ) -> None:
        self.network = network
        self.processors = processors
        self._description = description
        self._device = torch.device(description.device)
        self.observations = ObservationBuilder(description, self._device, resizes=resizes)
        self._inference = make_inference(
            network, description.state_class, rtc=description.supports_rtc
        )
        self._states: SessionStates[SessionMemory] = SessionStates(state_limit)
        self._is_compiled = bool(getattr(network.config, 'compile_model', False))
        self._precision = precision
        self._image_cache = image_cache

    def describe(self) -> PolicyDescription:
        return self._description

    def predict(self, requests: list[PolicyRequest]) -> list[Prediction]:
        """
        Return one prediction each; compatible requests share a forward pass.

        Raises PolicyError for a wrong request, and any error of LeRobot. A single request is
        reproducible bit by bit; in a batch it may differ by rounding.
        """
        prepared = [self._prepare(request) for request in requests]
        predictions: dict[int, Prediction] = {}
        memories: dict[int, SessionMemory] = {}
        for numbers in self._groups(prepared):
            group = self._enter([prepared[number] for number in numbers])
            chunks, forward_ms = self._forward(group)
            for number, each, chunk in zip(numbers, group, chunks.split(1), strict=True):
                memories[number] = self._next_memory(each)
                predictions[number] = self._prediction(each, chunk, forward_ms)
        for number, each in enumerate(prepared):
            request = each.request
            self._states.keep(request.session_id, request.episode, memories[number])
        return [predictions[number] for number in range(len(requests))]

    def reset(self, session_id: str) -> None:
        self._states.discard(session_id)

    def take_cache_counts(self) -> CacheCounts:
        return self._image_cache.take_counts() if self._image_cache is not None else CacheCounts()

    def close(self) -> None:
        if self._image_cache is not None:
            self._image_cache.clear()

    def _prepare(self, request: PolicyRequest) -> PreparedRequest:
        """Return a request prepared for the network. Raises PolicyError."""
        memory, lost = self._states.take(
            request.session_id, request.episode, request.episode_start
        )
        is_episode_start = memory is None
        if memory is None:
            memory = SessionMemory(self.processors.new_pair())
        elif self.processors.is_stateful:
            # a copy: the state of the session must not change if the batch fails
            memory = replace(memory, pair=self.processors.copy(memory.pair))
        observations = self.observations.build(request)
        history = [memory.pair.preprocess(observation) for observation in observations]
        # relative to the current state, which the pair has just processed
        reanchorer = memory.pair.reanchorer if self.processors.can_reanchor else None
        guidance = make_guidance(request, self._description, self._device, reanchorer)
        return PreparedRequest(request, memory, is_episode_start, lost, history, guidance)

    def _groups(self, prepared: list[PreparedRequest]) -> list[list[int]]:
        """Return the indices of requests that share a forward pass."""
        groups: dict[Hashable, list[int]] = {}
        for number, each in enumerate(prepared):
            alone = number if self._description.batch_limit == 1 else None
            key = (alone, each.guidance.key, tensor_shapes(each.history))
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    def _enter(self, group: list[PreparedRequest]) -> list[PreparedRequest]:
        """Give the network the hidden state of these requests; mark what is lost."""
        inference, first = self._inference, group[0]
        if isinstance(inference, TdmpcInference):
            inference.plan = first.memory.plan
        if isinstance(inference, ExternalInference):
            starts = first.is_episode_start
            is_kept = inference.enter(first.request.session_id, is_episode_start=starts)
            # a request of another client, such as a predict_chunk goal, came between
            if not starts and not is_kept:
                return [replace(first, is_episode_start=True, lost=True)]
        return group

    def _forward(self, group: list[PreparedRequest]) -> tuple[torch.Tensor, float]:
        """Return batch x rows x actions, and the duration."""
        inference = self._inference
        with ExitStack() as stack:
            for context in self._contexts([each.request.seed for each in group]):
                stack.enter_context(context)
            self._synchronize()
            start_s = time.perf_counter()
            chunks = inference.predict(
                [each.history for each in group], [each.guidance for each in group]
            )
            self._synchronize()
            forward_ms = (time.perf_counter() - start_s) * 1e3
        self._check_shape(chunks, len(group))
        # statistics and outputs are float32
        return chunks.float(), forward_ms

    def _contexts(self, seeds: list[int]) -> list[AbstractContextManager[Any]]:
        # RTC guidance needs gradients, which inference mode disables irrevocably
        rtc = self._description.supports_rtc
        contexts: list[AbstractContextManager[Any]] = [
            torch.no_grad() if rtc else torch.inference_mode()
        ]
        if self._precision is not None:
            contexts.append(torch.autocast(self._device.type, dtype=self._precision))
        if self._description.stochastic:
            contexts.append(seeded_random(seeds, self._device, is_compiled=self._is_compiled))
        if self._image_cache is not None:
            contexts.append(self._image_cache.installed())
        return contexts

    def _synchronize(self) -> None:
        if self._device.type == 'cuda':
            torch.cuda.synchronize(self._device)

    def _check_shape(self, chunks: torch.Tensor, count: int) -> None:
        actions = len(self._description.action_names)
        if chunks.ndim != 3 or chunks.shape[::2] != (count, actions):
            raise PolicyError(
                f'the policy returned {tuple(chunks.shape)} for {count} requests, expected '
                f'{count} x rows x {actions} actions'
            )

    def _next_memory(self, each: PreparedRequest) -> SessionMemory:
        plan = self._inference.plan if isinstance(self._inference, TdmpcInference) else None
        return SessionMemory(each.memory.pair, plan)

    def _prediction(
        self, each: PreparedRequest, chunk: torch.Tensor, forward_ms: float
    ) -> Prediction:
        robot = each.memory.pair.postprocess(chunk, whole=self.processors.takes_whole_chunk)
        remembers = self.processors.is_stateful or isinstance(
            self._inference, TdmpcInference | ExternalInference
        )
        return Prediction(
            _array(chunk),
            _array(robot),
            each.lost and remembers,
            forward_ms,
            state_found=remembers and not each.is_episode_start,
        )


def _array(chunk: torch.Tensor) -> Float32Array:
    """Return rows x actions of float32 as a copy."""
    rows: Float32Array = chunk[0].to('cpu', torch.float32, copy=True).numpy()
    return rows


def run_first_prediction(
    network: Any,
    processors: ProcessorPairFactory,
    description: PolicyDescription,
    kind: PolicyTypeSpec,
    state_limit: int,
    precision: torch.dtype | None = None,
    image_cache: ImageEmbeddingCache | None = None,
) -> LeRobotPolicy:
    """
    Return the policy after a first prediction, which determines what no file declares. Thread: the
    one that loads.

    Raises PolicyError, and any error of LeRobot.
    """
    own_size = (
        kind.resizes and getattr(network.config, 'resize_imgs_with_padding', True) is not None
    )
    request = blank_request(TRIAL_SESSION, description, task='nothing')
    make_policy = partial(
        LeRobotPolicy,
        network,
        processors,
        resizes=own_size,
        state_limit=state_limit,
        precision=precision,
        image_cache=image_cache,
    )
    trial = make_policy(description)
    chunk = trial.predict([request])[0].model
    if not np.isfinite(chunk).all():
        raise PolicyError(
            'the first prediction (black images, zero state) is not finite; the weights or '
            'statistics are damaged, copy or train the policy again'
        )
    predicted = torch.from_numpy(chunk).to(description.device).unsqueeze(0)
    processors.takes_whole_chunk = processors.check_whole_chunk(
        trial.observations.build(request)[-1], predicted
    )
    described = replace(description, chunk_size=len(chunk))
    anchored = described.supports_rtc and processors.can_reanchor
    # at a state other than zero
    moved = np.linspace(0.1, 1.0, request.state.shape[1], dtype=np.float32)
    request_there = structs.replace(request, state=np.broadcast_to(moved, request.state.shape))
    if anchored and not processors.check_reanchoring(
        trial.observations.build(request_there)[-1], predicted
    ):
        notes = (*described.notes, RTC_OFF_NOTE)
        described = replace(described, supports_rtc=False, notes=notes)
    policy = make_policy(described)
    if described.supports_rtc:
        with_prefix = structs.replace(
            request, prefix_model=chunk, prefix_robot=chunk, inference_delay_steps=1
        )
        policy.predict([with_prefix])
        policy.reset(TRIAL_SESSION)
    return policy
