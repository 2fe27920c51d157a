# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's pickles without Python's unpickler: a reader that executes nothing, and a writer of
the same messages.

`messages` -> `object_opcodes`, `torch_names`, `numpy_names` -> `value_opcodes` -> `reader` ->
`values`; `writer` stands alone.
"""

from lerobot_serve.peer_formats.safe_pickle.messages import (
    read_actions,
    read_observation,
    read_policy_config,
    RemotePolicyConfig,
    TimedAction,
    TimedObservation,
)
from lerobot_serve.peer_formats.safe_pickle.values import Limits, PickleRefused
from lerobot_serve.peer_formats.safe_pickle.writer import (
    write_actions,
    write_observation,
    write_policy_config,
)

__all__ = [
    'Limits',
    'PickleRefused',
    'RemotePolicyConfig',
    'TimedAction',
    'TimedObservation',
    'read_actions',
    'read_observation',
    'read_policy_config',
    'write_actions',
    'write_observation',
    'write_policy_config',
]
