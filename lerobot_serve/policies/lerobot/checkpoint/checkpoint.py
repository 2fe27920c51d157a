# SPDX-License-Identifier: Apache-2.0
"""
Read and check a policy directory before loading anything from it. No torch, any thread.

The directory must not run code: settings and processor steps come from allow-lists, state files
are in the directory, and tokenizers are on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
import os
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.files.assets import Asset, find_assets
from lerobot_serve.policies.files.file_headers import read_json
from lerobot_serve.policies.files.policy_folder import check_folder, version_manifest, version_name
from lerobot_serve.policies.lerobot.checkpoint.asset_rules import check_asset
from lerobot_serve.policies.lerobot.checkpoint.config_rules import check_config, CONFIG_RULES
from lerobot_serve.policies.lerobot.checkpoint.processor_step_rules import check_step, STEP_RULES
from lerobot_serve.policies.lerobot.checkpoint.version_rules import check_version
from lerobot_serve.policies.lerobot.hub import commit_of, HubPolicy, SHOWN_COMMIT
from lerobot_serve.policies.lerobot.policy_types import check_not_refused

CONFIG_FILE, WEIGHTS_FILE = 'config.json', 'model.safetensors'
ADAPTER_FILE = 'adapter_config.json'
PREPROCESSOR_FILE, POSTPROCESSOR_FILE = 'policy_preprocessor.json', 'policy_postprocessor.json'
CHECKPOINT_FOLDER, CHECKPOINTS_FOLDER = 'pretrained_model', 'checkpoints'
HUB_ID = re.compile(r'[A-Za-z0-9][\w.-]*/[\w.-]+')
NOT_IN_A_NAME = re.compile(r'[^A-Za-z0-9_.-]+')
NAME_LIMIT = 64
STEP_LIMIT = 32
STATE_LIMIT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ProcessorStepSpec:
    """One step of a processor, as its file describes it."""

    registry_name: str
    config: dict[str, Any]
    state_file: Path | None

    @property
    def active(self) -> bool:
        """Whether the step is enabled; LeRobot also saves disabled steps."""
        return self.config.get('enabled') is not False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checked contents of a policy directory."""

    path: Path
    policy_type: str
    config: dict[str, Any]
    preprocessor: tuple[ProcessorStepSpec, ...]
    postprocessor: tuple[ProcessorStepSpec, ...]
    assets: tuple[Asset, ...] = ()

    @property
    def steps(self) -> tuple[ProcessorStepSpec, ...]:
        return (*self.preprocessor, *self.postprocessor)

    @property
    def weights_file(self) -> Path:
        return self.path / WEIGHTS_FILE

    @property
    def files(self) -> list[Path]:
        """All files that determine the output of the policy."""
        named = (CONFIG_FILE, WEIGHTS_FILE, PREPROCESSOR_FILE, POSTPROCESSOR_FILE)
        states = {step.state_file for step in self.steps if step.state_file}
        return [*(self.path / name for name in named), *sorted(states)]


def read_checkpoint(path: str, trusted_packages: tuple[str, ...] = ()) -> Checkpoint:
    """
    Return the checked contents of the directory. Raises PolicyError.

    With `trusted_packages` the directory may name unknown types and steps; their package is
    checked after LeRobot is imported.
    """
    folder = Path(path)
    if not path or not folder.is_dir():
        raise PolicyError(
            f'the path of a LeRobot policy is its directory; {_not_a_directory(path)}'
        )
    check_folder(folder)
    if (folder / ADAPTER_FILE).exists():
        raise _adapter_error(folder)
    policy_type, config = read_config(folder)
    _required_file(folder, WEIGHTS_FILE, 'copy the whole directory')
    check_version(policy_type, config, str(folder / CONFIG_FILE))
    if policy_type in CONFIG_RULES:
        check_config(policy_type, config, str(folder / CONFIG_FILE))
    pre, post = (
        _read_steps(folder, name, policy_type, trusted_packages)
        for name in (PREPROCESSOR_FILE, POSTPROCESSOR_FILE)
    )
    assets = find_assets(config, [step.config for step in (*pre, *post)])
    for asset in assets:
        check_asset(asset)
    return Checkpoint(folder, policy_type, config, pre, post, tuple(assets))


def read_config(folder: Path) -> tuple[str, dict[str, Any]]:
    """
    Return the type of a policy and its settings, from the one small file that has both. Raises
    PolicyError, also for a type that is never served.
    """
    config = _read_object(_required_file(folder, CONFIG_FILE, 'copy the whole directory'))
    if config.get('use_peft'):
        raise _adapter_error(folder)
    policy_type = config.get('type')
    if not isinstance(policy_type, str):
        raise PolicyError(
            f"{folder / CONFIG_FILE} has no 'type', so it does not describe a LeRobot policy; "
            "give the directory that LeRobot's training wrote, pretrained_model"
        )
    check_not_refused(policy_type)
    return policy_type, config


def hub_origin(folder: Path) -> HubPolicy | None:
    """
    Return repository and commit of a folder in the hub's cache, or of a version that was published
    from there. Raises PolicyError.
    """
    manifest = version_manifest(folder)
    if manifest is None or not manifest.hub:
        return commit_of(folder)
    repository, _, commit = manifest.hub.partition('@')
    return HubPolicy(repository, commit)


def policy_id(options: LoadOptions) -> str:
    """
    Return the name of a policy: the operator's, that of a version, or that of its directory.
    Raises PolicyError.
    """
    path = Path(options.path)
    text = options.name or version_name(path) or _readable_name(path)
    return NOT_IN_A_NAME.sub('-', text).strip('-')[:NAME_LIMIT] or 'policy'


def _readable_name(path: Path) -> str:
    """Return act_so101-020000 for .../act_so101/checkpoints/020000/pretrained_model."""
    folder = Path(os.path.abspath(path))
    if of_hub := commit_of(folder):
        return f'{of_hub.repository.split("/")[1]}-{of_hub.revision[:SHOWN_COMMIT]}'
    if folder.name != CHECKPOINT_FOLDER:
        return folder.name
    checkpoint = folder.resolve().parent  # `last` is a link to the step
    if checkpoint.parent.name != CHECKPOINTS_FOLDER:
        return checkpoint.name
    return f'{checkpoint.parent.parent.name}-{checkpoint.name}'


def _not_a_directory(path: str) -> str:
    if HUB_ID.fullmatch(path):
        return (
            f'{path!r} does not exist; if it names a policy on the Hugging Face hub, download it '
            f'first: hf download {path} --local-dir {path.split("/")[1]}, and give that directory'
        )
    return f'{path!r} is not a directory'


def _adapter_error(folder: Path) -> PolicyError:
    return PolicyError(
        f'{folder} is a PEFT adapter, which holds only the difference from another policy; merge '
        'it into that policy, save the result, and give that directory'
    )


def _required_file(folder: Path, name: str, advice: str) -> Path:
    file = folder / name
    if not file.is_file():
        raise PolicyError(f'{file} is missing; {advice}')
    return file


def _read_object(file: Path) -> dict[str, Any]:
    value = read_json(file)
    if not isinstance(value, dict):
        raise PolicyError(f'{file} must hold a JSON object; copy it again')
    return value


def _read_steps(
    folder: Path, name: str, policy_type: str, trusted_packages: tuple[str, ...]
) -> tuple[ProcessorStepSpec, ...]:
    migrate = (
        'a policy of a LeRobot that did not save processors is migrated with '
        f'lerobot/processor/migrate_policy_normalization.py --pretrained-path {folder}'
    )
    file = _required_file(folder, name, migrate)
    steps = _read_object(file).get('steps')
    if not isinstance(steps, list):
        raise PolicyError(f"{file} must hold a list of 'steps'; {migrate}")
    if len(steps) > STEP_LIMIT:
        raise PolicyError(f'{file} has {len(steps)} steps, at most {STEP_LIMIT} are allowed')
    read = tuple(_read_step(file, number, step) for number, step in enumerate(steps))
    for number, step in enumerate(read):
        if step.registry_name in STEP_RULES or not trusted_packages:
            check_step(policy_type, step.registry_name, step.config, f'{file}: step {number}')
    return read


def _read_step(file: Path, number: int, step: object) -> ProcessorStepSpec:
    where = f'{file}: step {number}'
    if not isinstance(step, dict):
        raise PolicyError(f'{where} must be a JSON object; copy the file again')
    if 'class' in step:
        raise PolicyError(
            f'{where} names a class to import, {step["class"]!r}; code is not loaded from policy '
            'files: register the step with LeRobot in an installed package, and save the policy '
            'again'
        )
    name, config = step.get('registry_name'), step.get('config', {})
    if not isinstance(name, str) or not name:
        raise PolicyError(f"{where} has no 'registry_name'; save the policy again with LeRobot")
    if not isinstance(config, dict):
        raise PolicyError(f"{where} ({name}): 'config' must be a JSON object; save it again")
    return ProcessorStepSpec(name, config, _state_file(where, file.parent, step.get('state_file')))


def _state_file(where: str, folder: Path, name: object) -> Path | None:
    if name is None:
        return None
    if not isinstance(name, str) or Path(name).name != name or name in ('', '.', '..'):
        raise PolicyError(
            f"{where} names the state file {name!r}; it must be a file in the policy's own "
            'directory, named without a path'
        )
    file = _required_file(folder, name, f'{where} needs this file; copy the whole directory')
    if file.stat().st_size > STATE_LIMIT_BYTES:
        raise PolicyError(
            f'{where} has the state file {name!r} of {file.stat().st_size} bytes; statistics take '
            f'at most {STATE_LIMIT_BYTES}, copy the directory again'
        )
    return file
