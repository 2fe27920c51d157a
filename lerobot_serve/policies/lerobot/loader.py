"""Loading a LeRobot policy directory; called by whoever loads a policy, once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from lerobot_serve.policies.base import Loading, PolicyError
from lerobot_serve.policies.device import torch_device, use_threads
from lerobot_serve.policies.footprint import declared_bytes
from lerobot_serve.policies.headers import tensor_headers
from lerobot_serve.policies.lerobot.compat import (
    import_trusted,
    in_one_line,
    is_trusted,
    lerobot,
    quiet,
)
from lerobot_serve.policies.lerobot.description import describe
from lerobot_serve.policies.lerobot.features import read_features
from lerobot_serve.policies.lerobot.folder import CONFIG_FILE, Folder, read_folder
from lerobot_serve.policies.lerobot.kinds import check_dtype, Kind, kind_of, KINDS, served
from lerobot_serve.policies.lerobot.network import load_network
from lerobot_serve.policies.lerobot.pipelines import load_pipelines
from lerobot_serve.policies.lerobot.policy import LeRobotPolicy
from lerobot_serve.policies.lerobot.precision import precision_of, use_dtype
from lerobot_serve.policies.lerobot.sizes import check_sizes
from lerobot_serve.policies.lerobot.statistics import action_range, check_statistics
from lerobot_serve.policies.lerobot.trial import tried
from lerobot_serve.policies.memory import check_room

T = TypeVar('T')


def load(loading: Loading) -> LeRobotPolicy:
    """Return the policy in the directory `loading.path`, tried out once. Raises PolicyError."""
    use_threads(loading.cpu_threads)
    device = torch_device(loading.device)
    folder = read_folder(loading.path, loading.trusted_packages)
    kind = kind_of(folder.policy_type, loading.trusted_packages)
    check_dtype(folder.policy_type, kind, loading.dtype)
    features = read_features(folder, loading)
    headers = tensor_headers(folder.weights_file)
    notes = check_statistics(folder, loading.allow_missing_statistics)
    check_room(loading, declared_bytes(folder.path))
    lerobot()
    import_trusted(loading.trusted_packages)
    with quiet():
        network_class = _part(folder, 'its type', lambda: _class(folder, loading))
        config = _part(folder, CONFIG_FILE, lambda: _config(folder, device, kind, loading.dtype))
        _part(folder, 'its sizes', lambda: check_sizes(folder, network_class, config, headers))
        network = _part(
            folder,
            'the network',
            lambda: load_network(folder, network_class, config, loading.dtype),
        )
        pipelines = _part(
            folder,
            'the processors',
            lambda: load_pipelines(folder, config, device, loading.trusted_packages),
        )
        description = describe(
            folder,
            loading,
            features,
            kind,
            config,
            relative=pipelines.relative and not pipelines.anchored,
            notes=notes,
        )
        if not pipelines.relative:
            description = replace(description, action_range=action_range(folder))
        return _part(
            folder,
            'a first prediction',
            lambda: tried(
                network,
                pipelines,
                description,
                kind,
                loading.state_limit,
                precision_of(config, loading.dtype),
            ),
        )


def _part(folder: Folder, what: str, work: Callable[[], T]) -> T:
    """Return what a part of the loading makes. Raises PolicyError for all that LeRobot raises."""
    try:
        return work()
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(
            f'the {folder.policy_type} policy in {folder.path} cannot be used: {what} failed with '
            f'{type(error).__name__}: {in_one_line(error)}; the installed LeRobot is '
            f'{lerobot().version}'
        ) from error


def _class(folder: Folder, loading: Loading) -> Any:
    """Return the class of the network. Raises PolicyError for a type without one."""
    parts, name = lerobot(), folder.policy_type
    if name not in parts.config_class.get_known_choices():
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} is of the type {name!r:.80}, which neither LeRobot '
            f'{parts.version} nor {", ".join(loading.trusted_packages) or "a trusted package"} '
            f'brings; served are {served()}'
        )
    chosen = parts.config_class.get_choice_class(name)
    if name not in KINDS and not is_trusted(chosen, loading.trusted_packages):
        raise PolicyError(
            f'the type {name!r} is of {chosen.__module__.partition(".")[0]}, whose types are not '
            f'served; served are {served()}'
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


def _config(folder: Folder, device: torch.device, kind: Kind, dtype: str) -> Any:
    """Return the configuration as this server runs it: its device, RTC on, nothing downloaded."""
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
        rtc = config.rtc_config or parts.rtc_config()
        # its debugging keeps every chunk
        config.rtc_config = replace(rtc, enabled=True, debug=False)
    if hasattr(config, 'pretrained_backbone_weights'):
        # all weights are in the folder; torchvision would download these
        config.pretrained_backbone_weights = None
    for asset in folder.assets:
        if asset.is_model:
            config.vlm_model_name = str(asset.folder)
    use_dtype(config, dtype)
    return config
