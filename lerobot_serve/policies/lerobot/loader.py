"""Loading a LeRobot policy directory; called by whoever loads a policy, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import re
from typing import Any, TypeVar

import torch

from lerobot_serve.policies.base import Loading, PolicyError
from lerobot_serve.policies.device import torch_device, use_threads
from lerobot_serve.policies.lerobot.compat import in_one_line, lerobot, quiet, register_plugins
from lerobot_serve.policies.lerobot.description import describe
from lerobot_serve.policies.lerobot.features import read_features
from lerobot_serve.policies.lerobot.folder import CONFIG_FILE, Folder, read_folder
from lerobot_serve.policies.lerobot.kinds import Kind, kind_of, served
from lerobot_serve.policies.lerobot.network import load_network
from lerobot_serve.policies.lerobot.pipelines import load_pipelines
from lerobot_serve.policies.lerobot.policy import LeRobotPolicy
from lerobot_serve.policies.lerobot.statistics import action_range, check_statistics
from lerobot_serve.policies.lerobot.trial import tried
from lerobot_serve.policies.memory import check_room

T = TypeVar('T')

# how the configurations and processor steps name what they take from the hub
HUB_KEYS = (
    'vlm_model_name',
    'tokenizer_name',
    'base_model_path',
    'pretrained_name_or_path',
    'tokenizer_assets_repo',
    'action_tokenizer_path',
    'action_tokenizer_name',
    'text_tokenizer_name',
)
FROM_THE_HUB = re.compile(
    r'huggingface|hugging face|offline|LocalEntryNotFound|local folder|Can.t load', re.IGNORECASE
)


def load(loading: Loading) -> LeRobotPolicy:
    """Return the policy in the directory `loading.path`, tried out once. Raises PolicyError."""
    use_threads(loading.cpu_threads)
    device = torch_device(loading.device)
    folder = read_folder(loading.path)
    kind = kind_of(folder.policy_type)
    features = read_features(folder, loading)
    notes = check_statistics(folder, loading.allow_missing_statistics)
    check_room(loading, folder.weights_file.stat().st_size)
    lerobot()
    with quiet():
        network_class = _part(folder, 'its type', lambda: _class(folder))
        config = _part(folder, CONFIG_FILE, lambda: _config(folder, device, kind))
        network = _part(folder, 'the network', lambda: load_network(folder, network_class, config))
        pipelines = _part(folder, 'the processors', lambda: load_pipelines(folder, config, device))
        description = describe(
            folder, loading, features, kind, config, relative=pipelines.relative, notes=notes
        )
        if not pipelines.relative:
            description = replace(description, action_range=action_range(folder))
        return _part(
            folder,
            'a first prediction',
            lambda: tried(network, pipelines, description, kind, loading.state_limit),
        )


def _part(folder: Folder, what: str, work: Callable[[], T]) -> T:
    """Return what a part of the loading makes. Raises PolicyError for all that LeRobot raises."""
    try:
        return work()
    except PolicyError:
        raise
    except Exception as error:
        text = in_one_line(error)
        assets = _hub_assets(folder)
        if assets and FROM_THE_HUB.search(f'{type(error).__name__} {text}'):
            raise PolicyError(
                f'the policy in {folder.path} needs {", ".join(assets)}, which is neither a '
                'folder here nor to be had from the Hugging Face hub now; where there is a '
                f'network, run: hf download {assets[0]} (LeRobot says: {text})'
            ) from error
        raise PolicyError(
            f'the {folder.policy_type} policy in {folder.path} cannot be used: {what} failed with '
            f'{type(error).__name__}: {text}; the installed LeRobot is {lerobot().version}'
        ) from error


def _hub_assets(folder: Folder) -> list[str]:
    """Return the names of what the policy takes from the hub, or from folders."""
    steps = (*folder.preprocessor, *folder.postprocessor)
    configs = [folder.config, *(step.config for step in steps)]
    values = [config.get(key) for config in configs for key in HUB_KEYS]
    return list(dict.fromkeys(value for value in values if value and isinstance(value, str)))


def _class(folder: Folder) -> Any:
    """Return the class of the network. Raises PolicyError for a type without one."""
    parts, name = lerobot(), folder.policy_type
    if name not in parts.config_class.get_known_choices():
        register_plugins()
    if name not in parts.config_class.get_known_choices():
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} is of the type {name!r}, which LeRobot {parts.version} '
            f'does not know; served are {served()}: install the LeRobot or the package that '
            'brings it'
        )
    try:
        network_class = parts.get_policy_class(name)
    except ImportError as error:
        raise PolicyError(
            f'the type {name!r} needs more than is installed ({in_one_line(error)}); install it: '
            f"python3 -m pip install 'lerobot[{name}]'"
        ) from error
    if network_class.predict_action_chunk is parts.policy_class.predict_action_chunk:
        raise PolicyError(f'the type {name!r} predicts no chunks; served are {served()}')
    return network_class


def _config(folder: Folder, device: torch.device, kind: Kind) -> Any:
    """Return the configuration, on our device and with RTC on where there is RTC."""
    parts = lerobot()
    try:
        config = parts.config_class.from_pretrained(str(folder.path))
    except Exception as error:
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} cannot be read by LeRobot {parts.version}: '
            f'{in_one_line(error)}; install the LeRobot that wrote it'
        ) from error
    # LeRobot silently takes another device when the file's is not there
    config.device = str(device)
    if kind.rtc and parts.rtc_config and hasattr(config, 'rtc_config'):
        config.rtc_config = replace(config.rtc_config or parts.rtc_config(), enabled=True)
    return config
