# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's pickles without Python's unpickler: a reader that executes nothing, and a writer of
chunks.

`messages` -> `object_opcodes`, `torch_names`, `numpy_names` -> `value_opcodes` -> `reader` ->
`values` -> `limits`, `errors`; `writer` stands alone.
"""

from lerobot_serve.peer_formats.safe_pickle.errors import PickleRefused
from lerobot_serve.peer_formats.safe_pickle.limits import Limits
from lerobot_serve.peer_formats.safe_pickle.messages import (
    read_actions,
    read_observation,
    read_policy_config,
    RemotePolicyConfig,
    TimedAction,
    TimedObservation,
)
from lerobot_serve.peer_formats.safe_pickle.writer import write_actions

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
]
