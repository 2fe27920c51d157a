# SPDX-License-Identifier: Apache-2.0
"""
Compare the sizes of a network with the weights file before the network is built.

The network is first created without memory, on torch's device meta, which gives its sizes; the
header of the file declares the stored sizes. Thread: the one that loads a policy.
"""

from __future__ import annotations

from typing import Any

import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.files.file_headers import TensorHeader
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    Checkpoint,
    CONFIG_FILE,
    WEIGHTS_FILE,
)
from lerobot_serve.policies.lerobot.loading.random_values import SkipRandomValues

WEIGHT_PREFIX = 'model.'
RENAME_METHOD = '_fix_pytorch_state_dict_keys'
# allowed values of a network that are not in its file: tables of positions, masks, tied weights
SPARE_RATIO, SPARE_VALUES = 0.5, 1 << 24
# LeRobot fills ACT's table of positions value by value, in Python
TABLE_LIMIT = 1 << 21


def check_network_sizes(
    folder: Checkpoint, network_class: Any, config: Any, headers: dict[str, TensorHeader]
) -> None:
    """
    Raise PolicyError for a network whose shapes or size differ from those of the file.

    Raises any error of LeRobot that creates the network.
    """
    _check_table(folder, config)
    with torch.device('meta'), SkipRandomValues():
        network = network_class(config)
    stored = _file_tensors(network, headers)
    for name, value in network.state_dict().items():
        if name in stored and tuple(value.shape) != tuple(stored[name].shape):
            raise PolicyError(
                f'{folder.path / WEIGHTS_FILE} does not fit the {folder.policy_type} policy that '
                f'its config.json describes: {name} is {_shape_text(stored[name])} in the file '
                f'and {_shape_text(value)} in the network; copy the whole directory again, or '
                'load it with the LeRobot that wrote it'
            )
    built = sum(value.numel() for value in (*network.parameters(), *network.buffers()))
    held = sum(value.numel() for value in stored.values())
    if built > held * (1 + SPARE_RATIO) + SPARE_VALUES:
        raise PolicyError(
            f'the network that {folder.path / CONFIG_FILE} describes has {built} values, but '
            f'{WEIGHTS_FILE} holds {held}; they are of different policies; copy the whole '
            'directory again'
        )


def _check_table(folder: Checkpoint, config: Any) -> None:
    rows, width = getattr(config, 'chunk_size', 0), getattr(config, 'dim_model', 0)
    if rows * width > TABLE_LIMIT:
        raise PolicyError(
            f'{folder.path / CONFIG_FILE}: chunk_size x dim_model must be at most {TABLE_LIMIT}, '
            f'got {rows} x {width}'
        )


def _file_tensors(network: Any, headers: dict[str, TensorHeader]) -> dict[str, torch.Tensor]:
    """Return the tensors of the file by the names of the network, without storage."""
    stored = {name: torch.empty(each.shape, device='meta') for name, each in headers.items()}
    if hasattr(network, RENAME_METHOD):
        stored = getattr(network, RENAME_METHOD)(stored, network.config)
    own = network.state_dict()
    return {name if name in own else WEIGHT_PREFIX + name: value for name, value in stored.items()}


def _shape_text(value: torch.Tensor) -> str:
    return ' x '.join(map(str, value.shape)) or 'a single value'
