# SPDX-License-Identifier: Apache-2.0
"""
LeRobot policies with random weights, each written as LeRobot itself writes one. No network.

Random weights cost as much as trained ones. LeRobot is imported when the first one is built; the
caller's thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lerobot_serve.policies.lerobot.compat import lerobot, suppress_output


def build_policy(
    kind: str,
    folder: Path,
    *,
    images: Mapping[str, tuple[int, int]],
    joints: int,
    settings: Mapping[str, Any],
    seed: int = 0,
) -> Path:
    """
    Write a policy of one kind into a folder and return that: configuration, weights and both
    processors. `images` has height and width of each. Raises PolicyError without LeRobot.
    """
    parts = lerobot()
    inputs = {name: feature('VISUAL', 3, *size) for name, size in images.items()}
    inputs['observation.state'] = feature('STATE', joints)
    outputs = {'action': feature('ACTION', joints)}
    described = parts.config_class.get_choice_class(kind)(
        input_features=inputs, output_features=outputs, device='cpu', push_to_hub=False, **settings
    )
    with suppress_output(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = parts.get_policy_class(kind)(described)
        processors = parts.make_processors(
            described, dataset_stats=random_statistics(inputs | outputs)
        )
        for part in (policy, *processors):
            part.save_pretrained(folder)
    return folder


def feature(kind: str, *shape: int) -> Any:
    """Return what LeRobot calls a feature."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    return PolicyFeature(FeatureType[kind], shape)


def random_statistics(features: Mapping[str, Any]) -> dict[str, dict[str, torch.Tensor]]:
    """Draw what a data set would have said of each value."""
    drawn = {}
    for name, each in features.items():
        shape = (3, 1, 1) if each.type.name == 'VISUAL' else each.shape
        mean, std = torch.rand(shape) - 0.5, torch.rand(shape) + 0.5
        drawn[name] = {
            'mean': mean,
            'std': std,
            'min': mean - 3 * std,
            'max': mean + 3 * std,
            'q01': mean - 2 * std,
            'q99': mean + 2 * std,
        }
    return drawn
