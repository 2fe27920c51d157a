# SPDX-License-Identifier: Apache-2.0
"""
Load the network and verify that it uses the weights of the file.

LeRobot only logs a mismatch, and some of its loaders catch every error and continue with random
weights. Thread: the one that loads a policy.
"""

from __future__ import annotations

import contextlib
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import message_line
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import Checkpoint, WEIGHTS_FILE
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.loading.network_sizes import RENAME_METHOD, WEIGHT_PREFIX
from lerobot_serve.policies.lerobot.loading.random_values import SkipRandomValues
from lerobot_serve.policies.lerobot.policy_types import POLICY_TYPES

# methods of LeRobot's policies that read the weights
LOADERS = ('from_pretrained', '_load_as_safetensor')
SHOWN_NAMES = 4
OLD_NORMALIZERS = ('normalize_inputs.', 'normalize_targets.', 'unnormalize_outputs.')


def load_network(folder: Checkpoint, network_class: Any, config: Any, dtype: str = '') -> Any:
    """Return the network with the file's weights, ready to predict. Raises PolicyError."""
    try:
        with _random_values(folder.policy_type):
            network = network_class.from_pretrained(str(folder.path), config=config, strict=True)
    except SafetensorError as error:
        raise PolicyError(
            f'{folder.weights_file} is not a readable safetensors file ({error}); copy it again '
            'in binary mode; fetch it with git lfs if it is a pointer file'
        ) from error
    except RuntimeError as error:
        if 'loading state_dict' not in str(error):
            raise
        raise _mismatch(folder, message_line(error)) from error
    if _has_own_loader(network_class):
        check_weights(folder, network)
    if dtype == 'float32':
        network.float()
    network.to(torch.device(config.device)).eval()
    return network.requires_grad_(False)


def check_weights(folder: Checkpoint, network: Any) -> None:
    """Raise PolicyError unless the network has exactly the weights of the file."""
    file = load_file(folder.weights_file)
    if hasattr(network, RENAME_METHOD):
        file = getattr(network, RENAME_METHOD)(file, network.config)
    held = network.state_dict()
    file = {key if key in held else WEIGHT_PREFIX + key: value for key, value in file.items()}
    if unknown := sorted(file.keys() - held.keys()):
        raise _mismatch(folder, f'unknown weights {_shortened(unknown)}')
    stored = {held[key].data_ptr() for key in file}
    missing = sorted(
        key for key in held.keys() - file.keys() if held[key].data_ptr() not in stored
    )
    if missing:
        raise _mismatch(folder, f'missing weights {_shortened(missing)}')
    if wrong := sorted(key for key in file if not _equal(file[key], held[key])):
        raise _mismatch(folder, f'not loaded {_shortened(wrong)}')


def _random_values(policy_type: str) -> contextlib.AbstractContextManager[object]:
    """Skip those of LeRobot's types; one of a trusted package may have some that no file has."""
    return SkipRandomValues() if policy_type in POLICY_TYPES else contextlib.nullcontext()


def _has_own_loader(network_class: Any) -> bool:
    base = lerobot().policy_class
    return any(
        _function(network_class, name) is not _function(base, name)
        for name in LOADERS
        if hasattr(base, name)
    )


def _function(network_class: Any, name: str) -> Any:
    method = getattr(network_class, name)
    # a static method has none
    return getattr(method, '__func__', method)


def _equal(stored: torch.Tensor, loaded: torch.Tensor) -> bool:
    if stored.shape != loaded.shape:
        return False
    expected = stored.to(loaded.device, loaded.dtype)
    same: bool = torch.equal(expected, loaded) or torch.allclose(
        expected, loaded, rtol=0, atol=0, equal_nan=True
    )
    return same


def _shortened(names: list[str]) -> str:
    more = f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''
    return ', '.join(names[:SHOWN_NAMES]) + more


def _mismatch(folder: Checkpoint, what: str) -> PolicyError:
    advice = 'copy the whole directory again, or load it with the LeRobot that wrote it'
    if any(name in what for name in OLD_NORMALIZERS):
        advice = (
            'the policy is of a LeRobot that did not save processors: migrate it with '
            f'lerobot/processor/migrate_policy_normalization.py --pretrained-path {folder.path}'
        )
    return PolicyError(
        f'{folder.path / WEIGHTS_FILE} does not fit the {folder.policy_type} policy that its '
        f'config.json describes ({what}); {advice}'
    )
