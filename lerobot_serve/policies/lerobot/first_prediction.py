# SPDX-License-Identifier: Apache-2.0
"""
Run a first prediction to determine properties that no file declares. Thread: the one that loads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from lerobot_serve.policies.base import PolicyDescription, PolicyError
from lerobot_serve.policies.lerobot.description import RTC_OFF_NOTE
from lerobot_serve.policies.lerobot.policy_types import PolicyTypeSpec
from lerobot_serve.policies.lerobot.prediction.image_embeddings import ImageEmbeddingCache
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy
from lerobot_serve.policies.lerobot.prediction.processors import ProcessorPairFactory
from lerobot_serve.policies.runtime.request_inputs import blank_request

TRIAL_SESSION = 'trial'


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
    Return the policy after a first prediction, which determines the chunk size.

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
    request_there = replace(request, state=np.broadcast_to(moved, request.state.shape))
    if anchored and not processors.check_reanchoring(
        trial.observations.build(request_there)[-1], predicted
    ):
        notes = (*described.notes, RTC_OFF_NOTE)
        described = replace(described, supports_rtc=False, notes=notes)
    policy = make_policy(described)
    if described.supports_rtc:
        with_prefix = replace(
            request, prefix_model=chunk, prefix_robot=chunk, inference_delay_steps=1
        )
        policy.predict([with_prefix])
        policy.reset(TRIAL_SESSION)
    return policy
