# SPDX-License-Identifier: Apache-2.0
"""
Placeholders for the names and the rate of a policy that is only replayed.

A replay compares numbers and moves no joint, so the operator need not set the names and the rate
that a LeRobot policy lacks. Any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import feature_sizes, unspecified_options
from lerobot_serve.server.inference import policy_loading
from lerobot_serve.server.parameters import ServerParameters

PLACEHOLDER_RATE_HZ = 1.0


def with_placeholder_names(parameters: ServerParameters) -> ServerParameters:
    """Return the parameters, completed for a LeRobot policy. Raises PolicyError."""
    if parameters.policy_kind != 'lerobot':
        return parameters
    folder = read_checkpoint(parameters.policy_path)
    states, actions = feature_sizes(folder)
    placeholders: dict[str, Any] = {
        'state_names': tuple(f'state_{i}' for i in range(states)),
        'action_names': tuple(f'action_{i}' for i in range(actions)),
        'trained_fps': PLACEHOLDER_RATE_HZ,
    }
    missing = unspecified_options(
        folder, policy_loading.load_options(parameters, parameters.policy_path)
    )
    return replace(parameters, **{name: placeholders[name] for name in missing})
