# SPDX-License-Identifier: Apache-2.0
"""
Load the network and verify that it uses the weights of the file.

LeRobot only logs a mismatch, and some of its loaders catch every error and continue with random
weights. Before it is built, the network is created without memory, on torch's device meta, and its
sizes are compared with those that the header of the file declares. It is built without the random
values that its file replaces: half of the time of a load. Thread: the one that loads a policy.
"""

from __future__ import annotations

import contextlib
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.error_text import message_line
from lerobot_serve.policies.files.file_headers import TensorHeader, unreadable
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    Checkpoint,
    CONFIG_FILE,
    WEIGHTS_FILE,
)
from lerobot_serve.policies.lerobot.compat import lerobot
from lerobot_serve.policies.lerobot.policy_types import POLICY_TYPES
from lerobot_serve.policies.runtime.loading_beside import give_way

# some policy types have a setting for the precision; the others compute under torch's autocast,
# which keeps weights in float32 and is measured against float32 in the tests
AUTOCAST_DTYPES = {'bfloat16': torch.bfloat16, 'float16': torch.float16}
# methods of LeRobot's policies that read the weights
LOADERS = ('from_pretrained', '_load_as_safetensor')
SHOWN_NAMES = 4
OLD_NORMALIZERS = ('normalize_inputs.', 'normalize_targets.', 'unnormalize_outputs.')
WEIGHT_PREFIX = 'model.'
RENAME_METHOD = '_fix_pytorch_state_dict_keys'
# allowed values of a network that are not in its file: tables of positions, masks, tied weights
SPARE_RATIO, SPARE_VALUES = 0.5, 1 << 24
# LeRobot fills ACT's table of positions value by value, in Python
TABLE_LIMIT = 1 << 21
# a mode sees these functions of torch.nn.init; of the others it sees the methods that they call
FILLS = frozenset(
    {
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        init.normal_,
        init.uniform_,
        init.kaiming_uniform_,
    }
)


def set_dtype(config: Any, dtype: str) -> None:
    """Set the precision in a configuration; an empty one changes nothing."""
    if dtype and hasattr(config, 'dtype'):
        config.dtype = dtype
    elif dtype:
        config.use_amp = False


def autocast_dtype(config: Any, dtype: str) -> torch.dtype | None:
    """Return the precision of autocast; None if the network computes in that of its weights."""
    if dtype:
        return None if hasattr(config, 'dtype') else AUTOCAST_DTYPES.get(dtype)
    uses_amp = config.use_amp and config.device.startswith('cuda')
    return torch.float16 if uses_amp else None


def load_network(folder: Checkpoint, network_class: Any, config: Any, dtype: str = '') -> Any:
    """Return the network with the file's weights, ready to predict. Raises PolicyError."""
    try:
        with _random_values(folder.policy_type):
            network = network_class.from_pretrained(str(folder.path), config=config, strict=True)
    except SafetensorError as error:
        raise unreadable(folder.weights_file, 'safetensors file', error) from error
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
    held = network.state_dict()
    file = _by_own_names(network, held, load_file(folder.weights_file))
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
    own = network.state_dict()
    without_storage = {
        name: torch.empty(each.shape, device='meta') for name, each in headers.items()
    }
    stored = _by_own_names(network, own, without_storage)
    for name, value in own.items():
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


def _by_own_names(
    network: Any, own: dict[str, torch.Tensor], stored: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by the names of the network."""
    if hasattr(network, RENAME_METHOD):
        stored = getattr(network, RENAME_METHOD)(stored, network.config)
    return {name if name in own else WEIGHT_PREFIX + name: value for name, value in stored.items()}


def _shape_text(value: torch.Tensor) -> str:
    return ' x '.join(map(str, value.shape)) or 'a single value'


class SkipRandomValues(TorchFunctionMode):
    """
    Leave parameters as they are where their initialization fills them at random, and tensors
    without memory, too. The caller loads every parameter from a file. Buffers are filled: a file
    need not have them.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        give_way()
        given = kwargs or {}
        if func in FILLS:
            filled = args[0] if args else given['tensor']
            if filled.is_meta or isinstance(filled, torch.nn.Parameter):
                return filled
        return func(*args, **given)
