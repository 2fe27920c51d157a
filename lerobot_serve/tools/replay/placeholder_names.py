# SPDX-License-Identifier: Apache-2.0
"""
Names and a rate for a policy that is only to be asked again.

A replay compares numbers and moves no joint, so names and rate that a policy of LeRobot does not
hold are made up instead of asked of the operator. Any thread.
"""

from __future__ import annotations

from dataclasses import replace

from lerobot_serve.policies.lerobot.checkpoint.checkpoint import read_checkpoint
from lerobot_serve.policies.lerobot.checkpoint.features import feature_sizes, unspecified_options
from lerobot_serve.server import assembly
from lerobot_serve.server.parameters import ServerParameters

PLACEHOLDER_RATE_HZ = 1.0


def with_placeholder_names(parameters: ServerParameters) -> ServerParameters:
    """Return the parameters, complete for a policy of LeRobot. Raises PolicyError."""
    if parameters.policy_kind != 'lerobot':
        return parameters
    folder = read_checkpoint(parameters.policy_path)
    states, actions = feature_sizes(folder)
    stand_in = {
        'state_names': tuple(f'state_{i}' for i in range(states)),
        'action_names': tuple(f'action_{i}' for i in range(actions)),
        'trained_fps': PLACEHOLDER_RATE_HZ,
    }
    missing = unspecified_options(
        folder, assembly.load_options(parameters, parameters.policy_path)
    )
    return replace(parameters, **{name: stand_in[name] for name in missing})
