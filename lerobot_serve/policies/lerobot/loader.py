# SPDX-License-Identifier: Apache-2.0
"""Load a LeRobot policy directory. Thread: the one that loads a policy."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
from dataclasses import replace
from typing import Any

import torch

from lerobot_serve.policies.base import LoadOptions, PolicyDescription, PolicyError
from lerobot_serve.policies.error_text import is_library_error, message_line
from lerobot_serve.policies.files.file_headers import tensor_headers
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    Checkpoint,
    CONFIG_FILE,
    read_checkpoint,
)
from lerobot_serve.policies.lerobot.checkpoint.config_rules import CUDA_GRAPH_MODES, TRAINED
from lerobot_serve.policies.lerobot.checkpoint.features import read_features
from lerobot_serve.policies.lerobot.checkpoint.normalization_statistics import (
    action_range,
    check_statistics,
)
from lerobot_serve.policies.lerobot.checkpoint.tokenizer_rules import try_tokenizers
from lerobot_serve.policies.lerobot.compat import (
    import_trusted,
    is_trusted,
    lerobot,
    skip_help_texts,
    suppress_output,
)
from lerobot_serve.policies.lerobot.description import describe_policy
from lerobot_serve.policies.lerobot.network import (
    autocast_dtype,
    check_network_sizes,
    load_network,
    set_dtype,
)
from lerobot_serve.policies.lerobot.policy_types import (
    check_dtype,
    policy_type_spec,
    POLICY_TYPES,
    PolicyTypeSpec,
    served_types,
)
from lerobot_serve.policies.lerobot.prediction.image_embeddings import ImageEmbeddingCache
from lerobot_serve.policies.lerobot.prediction.policy import LeRobotPolicy, run_first_prediction
from lerobot_serve.policies.lerobot.prediction.processors import load_processors
from lerobot_serve.policies.runtime.device import (
    set_cpu_threads,
    torch_device,
    use_one_thread_beside,
)
from lerobot_serve.policies.runtime.loading_beside import is_beside
from lerobot_serve.policies.runtime.memory import (
    check_memory,
    declared_bytes,
    leave_out_of_collections,
)
from lerobot_serve.requirements import install_command, REQUIREMENTS


def load(options: LoadOptions) -> LeRobotPolicy:
    """
    Return the policy in the directory `options.path` after a first prediction. Raises PolicyError.
    """
    set_cpu_threads(options.cpu_threads)
    device = torch_device(options.device)
    folder = read_checkpoint(options.path, options.trusted_packages)
    kind = policy_type_spec(folder.policy_type, options.trusted_packages)
    check_dtype(folder.policy_type, kind, options.dtype)
    features = read_features(folder, options)
    headers = tensor_headers(folder.weights_file)
    notes = check_statistics(folder, options.allow_missing_statistics)
    check_memory(options, declared_bytes(folder.path))
    try_tokenizers(folder.assets)
    lerobot()
    import_trusted(options.trusted_packages)
    with suppress_output():
        with _part(folder, 'its type'):
            network_class = _network_class(folder, options)
        # before the first network is built, which may have to be collected one day
        leave_out_of_collections('libraries of LeRobot')
        with _part(folder, CONFIG_FILE):
            config = _load_config(folder, device, kind, options.dtype)
        check_may_change_thread(folder, config, device)
        if not _is_compiled(config):
            # a compiled network would keep the number
            use_one_thread_beside(device)
        with _part(folder, 'its sizes'):
            check_network_sizes(folder, network_class, config, headers)
        with _part(folder, 'the network'):
            network = load_network(folder, network_class, config, options.dtype)
        with _part(folder, 'the processors'):
            processors = load_processors(folder, config, device, options.trusted_packages)
        description = describe_policy(
            folder,
            options,
            features,
            kind,
            config,
            relative=processors.is_relative and not processors.can_reanchor,
            notes=notes,
        )
        if not processors.is_relative:
            description = replace(description, action_range=action_range(folder))
        with _part(folder, 'a first prediction'):
            policy = run_first_prediction(
                network,
                processors,
                description,
                kind,
                options.state_limit,
                autocast_dtype(config, options.dtype),
                _image_cache(network, kind, description),
            )
    return policy


def check_may_change_thread(folder: Checkpoint, config: Any, device: torch.device) -> None:
    """Raise PolicyError in a swap for a network that only the thread that loads it can run."""
    mode = getattr(config, 'compile_mode', '') if _is_compiled(config) else ''
    if is_beside() and device.type == 'cuda' and mode in CUDA_GRAPH_MODES:
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} has compile_mode {mode!r}, which captures CUDA graphs: '
            'they run only in the thread that compiles, and a swap does so in another one than '
            'predicts; set compile_mode to default or max-autotune-no-cudagraphs, or load the '
            'policy replica by replica'
        )


def _is_compiled(config: Any) -> bool:
    return bool(getattr(config, 'compile_model', False))


def _image_cache(
    network: Any, kind: PolicyTypeSpec, description: PolicyDescription
) -> ImageEmbeddingCache | None:
    """Return the cache that a description has, None without one."""
    limit_bytes = description.embedding_cache_bytes
    if not limit_bytes:
        return None
    return ImageEmbeddingCache(network.get_submodule(kind.image_encoder), limit_bytes)


@contextlib.contextmanager
def _part(folder: Checkpoint, what: str) -> Iterator[None]:
    """Run one step of loading. Raises PolicyError for any error of LeRobot."""
    try:
        yield
    except PolicyError:
        raise
    except BaseException as error:
        if not is_library_error(error):
            raise
        raise PolicyError(
            f'the {folder.policy_type} policy in {folder.path} cannot be used: {what} failed with '
            f'{type(error).__name__}: {message_line(error)}; the installed LeRobot is '
            f'{lerobot().version}'
        ) from error


def _network_class(folder: Checkpoint, options: LoadOptions) -> Any:
    """Return the class of the network. Raises PolicyError for a type without one."""
    parts, name = lerobot(), folder.policy_type
    if name not in parts.config_class.get_known_choices():
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} is of the type {name!r:.80}, which neither LeRobot '
            f'{parts.version} nor {", ".join(options.trusted_packages) or "a trusted package"} '
            f'provides; supported are {served_types()}'
        )
    chosen = parts.config_class.get_choice_class(name)
    if name not in POLICY_TYPES and not is_trusted(chosen, options.trusted_packages):
        raise PolicyError(
            f'the type {name!r} is of {chosen.__module__.partition(".")[0]}, whose types are not '
            f'supported; supported are {served_types()}'
        )
    try:
        network_class = parts.get_policy_class(name)
    except ImportError as error:
        raise PolicyError(
            f'the type {name!r} needs more than is installed ({message_line(error)}); install it: '
            f'{_install_command(name, error)}'
        ) from error
    if network_class.predict_action_chunk is parts.policy_class.predict_action_chunk:
        raise PolicyError(f'the type {name!r} predicts no chunks; supported are {served_types()}')
    return network_class


def _install_command(name: str, error: ImportError) -> str:
    """Return the command that installs what the network of a type lacks."""
    package = (error.name or '').partition('.')[0]
    if package in REQUIREMENTS:
        return install_command(package)
    return f"python3 -m pip install 'lerobot[{name}]=={lerobot().version}'"


def _load_config(
    folder: Checkpoint, device: torch.device, kind: PolicyTypeSpec, dtype: str
) -> Any:
    """Return the configuration for this server: its device, RTC enabled, no downloads."""
    parts = lerobot()
    try:
        with skip_help_texts():
            config = parts.config_class.from_pretrained(str(folder.path))
    except Exception as error:
        raise PolicyError(
            f'{folder.path / CONFIG_FILE} cannot be read by LeRobot {parts.version}: '
            f'{message_line(error)}; install the LeRobot that wrote it'
        ) from error
    # LeRobot silently uses another device if that of the file is missing
    config.device = str(device)
    if kind.rtc and parts.rtc_config and hasattr(config, 'rtc_config'):
        rtc = config.rtc_config or _default_rtc(config)
        # RTC debugging keeps every chunk in memory
        config.rtc_config = replace(rtc, enabled=True, debug=False)
    if hasattr(config, 'pretrained_backbone_weights'):
        # torchvision would download these weights; all weights are in the folder
        config.pretrained_backbone_weights = None
    for asset in folder.assets:
        if asset.is_model:
            config.vlm_model_name = str(asset.folder)
    set_dtype(config, dtype)
    return config


def _default_rtc(config: Any) -> Any:
    """Return the RTC settings of a policy that has none, by what it was trained for."""
    rtc: Any = lerobot().rtc_config()
    trained_steps = getattr(config, 'rtc_training_max_delay', 0)
    return replace(rtc, mode=TRAINED) if hasattr(rtc, 'mode') and trained_steps else rtc
