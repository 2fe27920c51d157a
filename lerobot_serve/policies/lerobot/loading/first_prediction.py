"""A first prediction, which shows what no file says; called by whoever loads a policy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lerobot_serve.policies.base import PolicyDescription, PolicyError, PolicyRequest
from lerobot_serve.policies.lerobot.loading.description import RTC_OFF_NOTE
from lerobot_serve.policies.lerobot.policy_types import PolicyTypeSpec
from lerobot_serve.policies.lerobot.prediction.batches import ObservationBuilder
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy
from lerobot_serve.policies.lerobot.prediction.processors import ProcessorPairFactory

TRIAL_SESSION = 'trial'


def try_policy(
    network: Any,
    pipelines: ProcessorPairFactory,
    description: PolicyDescription,
    kind: PolicyTypeSpec,
    state_limit: int,
    precision: torch.dtype | None = None,
) -> LeRobotPolicy:
    """
    Return the policy after a first prediction, which tells how long its chunks are.

    Raises PolicyError, and whatever LeRobot raises.
    """
    own_size = (
        kind.resizes and getattr(network.config, 'resize_imgs_with_padding', True) is not None
    )
    request = _blank_request(description)
    options = {'resizes': own_size, 'state_limit': state_limit, 'precision': precision}
    trial = LeRobotPolicy(network, pipelines, description, **options)
    chunk = trial.predict([request])[0].model
    if not np.isfinite(chunk).all():
        raise PolicyError(
            'the first prediction, of a black scene, has values that are not finite; the weights '
            'or statistics are damaged, copy or train the policy anew'
        )
    observations = ObservationBuilder(
        description, torch.device(description.device), resizes=own_size
    )
    predicted = torch.from_numpy(chunk).to(description.device).unsqueeze(0)
    pipelines.whole = pipelines.check_whole_chunk(observations.of(request)[-1], predicted)
    described = replace(description, chunk_size=len(chunk))
    anchored = described.supports_rtc and pipelines.anchored
    if anchored and not _can_reanchor(pipelines, observations, request, predicted):
        notes = (*described.notes, RTC_OFF_NOTE)
        described = replace(described, supports_rtc=False, notes=notes)
    policy = LeRobotPolicy(network, pipelines, described, **options)
    if described.supports_rtc:
        prefix = {'prefix_model': chunk, 'prefix_robot': chunk, 'inference_delay_steps': 1}
        policy.predict([replace(request, **prefix)])
        policy.reset(TRIAL_SESSION)
    return policy


def _can_reanchor(
    pipelines: ProcessorPairFactory,
    observations: ObservationBuilder,
    request: PolicyRequest,
    predicted: torch.Tensor,
) -> bool:
    """Try a prefix at a state that is not zero, where a wrong anchor shows."""
    state = np.linspace(0.1, 1.0, request.state.shape[1], dtype=np.float32)
    moved = replace(request, state=np.broadcast_to(state, request.state.shape))
    return pipelines.carries_over(observations.of(moved)[-1], predicted)


def _blank_request(description: PolicyDescription) -> PolicyRequest:
    """Return a request of zeros and black frames."""
    steps = description.observation_steps
    return PolicyRequest(
        TRIAL_SESSION,
        np.zeros((steps, len(description.state_names)), np.float32),
        {
            camera.name: (np.zeros((camera.height, camera.width, camera.channels), np.uint8),)
            * steps
            for camera in description.cameras
        },
        task='nothing',
        episode_start=True,
    )
