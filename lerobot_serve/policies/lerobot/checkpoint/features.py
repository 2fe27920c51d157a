# SPDX-License-Identifier: Apache-2.0
"""
Determine the inputs and outputs of a policy from its configuration and the load options.

LeRobot's files contain no joint names and no rate. Those that the operator does not set come from
the training data set: `train_config.json` beside the weights names it, and its `meta/info.json`
has them. That is read if it is on this machine, or from a copy in the policy directory
(`meta/info.json`); nothing is downloaded. No torch, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
import json
import os
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import LoadOptions, PolicyCamera, PolicyDescription, PolicyError
from lerobot_serve.policies.files.policy_folder import SIZE_LIMIT
from lerobot_serve.policies.lerobot.checkpoint.checkpoint import (
    Checkpoint,
    CHECKPOINTS_FOLDER,
    CONFIG_FILE,
)

STATE, ACTION = 'observation.state', 'action'
# not in any file of a policy
NOT_IN_CHECKPOINT = ('state_names', 'action_names', 'trained_fps')
EMPTY_CAMERA = 'observation.images.empty_camera_'
ACTION_NAMES = 'action_feature_names'
FEATURE_LIMIT, CHANNEL_LIMIT, PIXEL_LIMIT = 32, 4, 1 << 25
DATASET_FEATURES = {'state_names': f'"{STATE}"', 'action_names': ACTION}
TRAIN_FILE, INFO_FILE = 'train_config.json', Path('meta', 'info.json')
HOME_VARIABLES = ('HF_LEROBOT_HOME', 'HF_HOME')
REPOSITORY = re.compile(r'[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*')
BYTES_LIMIT, NAMES_LIMIT, NAME_BYTES_LIMIT, RATE_LIMIT_HZ = 4 << 20, 4096, 128, 1000


def read_features(folder: Checkpoint, options: LoadOptions) -> PolicyDescription:
    """
    Return the description of the policy by its inputs and outputs alone, without state names if it
    has no state. Raises PolicyError.
    """
    where = str(folder.path / CONFIG_FILE)
    inputs = _features(where, folder.config, 'input_features')
    outputs = _features(where, folder.config, 'output_features')
    for key, feature in inputs.items():
        if feature.type != 'VISUAL' and (key, feature.type) != (STATE, 'STATE'):
            raise _unsupported_feature(where, key, feature.type)
    for key, feature in outputs.items():
        if (key, feature.type) != (ACTION, 'ACTION'):
            raise _unsupported_feature(where, key, feature.type)
    if ACTION not in outputs:
        raise PolicyError(f'{where} has no {ACTION!r} in output_features; train the policy again')
    state_count = _count(where, inputs, STATE) if STATE in inputs else 0
    action_count = _count(where, outputs, ACTION)
    seen = _cameras(where, folder.config, inputs)
    options = with_dataset_defaults(folder, options)
    if held := config_action_names(folder):
        options = replace(options, action_names=_checked_action_names(held, options))
    if missing := _missing(options, state_count, action_count):
        raise PolicyError('; '.join(missing))
    return PolicyDescription(
        folder.policy_type,
        fingerprint='',
        state_names=options.state_names,
        action_names=options.action_names,
        cameras=seen,
        chunk_size=0,
        trained_fps=options.trained_fps,
    )


def feature_sizes(folder: Checkpoint) -> tuple[int, int]:
    """Return the number of values of a state and of an action. Raises PolicyError."""
    where = str(folder.path / CONFIG_FILE)
    inputs = _features(where, folder.config, 'input_features')
    outputs = _features(where, folder.config, 'output_features')
    state_count = _count(where, inputs, STATE) if STATE in inputs else 0
    action_count = _count(where, outputs, ACTION) if ACTION in outputs else 0
    return state_count, action_count


def with_dataset_defaults(folder: Checkpoint, options: LoadOptions) -> LoadOptions:
    """Return the options, with missing names and rate filled in from the data set."""
    training, (states, actions) = read_dataset_info(folder.path), feature_sizes(folder)
    fits = {
        # a different number of names means another data set
        'state_names': len(training.state_names) == states,
        'action_names': len(training.action_names) == actions and not config_action_names(folder),
        'trained_fps': training.trained_fps > 0,
    }
    found = [name for name in NOT_IN_CHECKPOINT if fits[name] and not getattr(options, name)]
    return replace(options, **{name: getattr(training, name) for name in found})


def config_action_names(folder: Checkpoint) -> Any:
    """Return the names of the actions that a newer LeRobot writes into the configuration."""
    return folder.config.get(ACTION_NAMES)


def unspecified_options(folder: Checkpoint, options: LoadOptions) -> tuple[str, ...]:
    """
    Return the options among names and rate that are unknown. Raises PolicyError.
    """
    whole = with_dataset_defaults(folder, options)
    known = {
        'action_names': config_action_names(folder),
        'state_names': not feature_sizes(folder)[0],
    }
    return tuple(
        name for name in NOT_IN_CHECKPOINT if not (getattr(whole, name) or known.get(name))
    )


def _missing(options: LoadOptions, state_count: int, action_count: int) -> list[str]:
    """Return all missing or wrong options, so that one start reports all of them."""
    missing = []
    if not 0 < options.trained_fps < float('inf'):
        missing.append(
            f'trained_fps must be set and above 0, got {options.trained_fps:g}: the fps of the '
            "data set that the policy was trained on, in its meta/info.json under 'fps'"
        )
    wanted = {'state_names': state_count, 'action_names': action_count}
    for parameter, count in wanted.items():
        names = getattr(options, parameter)
        if not (len(names) == count and len(set(names)) == count and all(names)):
            missing.append(_wrong_names_text(parameter, names, count))
    return missing


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of the configuration."""

    type: str
    shape: tuple[int, ...]


def _features(where: str, config: dict[str, Any], name: str) -> dict[str, Feature]:
    entries = config.get(name)
    if not isinstance(entries, dict) or not entries:
        raise PolicyError(
            f'{where} has no {name}, so its inputs and outputs are unknown; give the '
            "directory that LeRobot's training wrote"
        )
    if len(entries) > FEATURE_LIMIT:
        raise PolicyError(f'{where}: {name} has {len(entries)} entries, at most {FEATURE_LIMIT}')
    return {key: _feature(f'{where}: {name}: {key:.80}', entry) for key, entry in entries.items()}


def _feature(where: str, entry: object) -> Feature:
    if isinstance(entry, dict):
        kind, shape = entry.get('type'), entry.get('shape')
        if (
            isinstance(kind, str)
            and isinstance(shape, list)
            and all(type(size) is int and size > 0 for size in shape)
        ):
            return Feature(kind, tuple(shape))
    raise PolicyError(
        f"{where} must have a 'type' and a 'shape' of sizes above 0, got {entry!r:.80}"
    )


def _unsupported_feature(where: str, key: str, kind: str) -> PolicyError:
    return PolicyError(
        f'{where} has the feature {key!r} of the type {kind}, which observations do not carry; '
        f'supported are {STATE!r}, cameras, and {ACTION!r}: train the policy without it'
    )


def _count(where: str, features: dict[str, Feature], key: str) -> int:
    shape = features[key].shape
    if shape and shape[0] > SIZE_LIMIT:
        raise PolicyError(f'{where}: {key!r} has {shape[0]} values, over {SIZE_LIMIT}')
    if len(shape) != 1:
        raise PolicyError(f'{where}: {key!r} must be a list of values, got the shape {shape}')
    return shape[0]


def _cameras(
    where: str, config: dict[str, Any], inputs: dict[str, Feature]
) -> tuple[PolicyCamera, ...]:
    cameras = []
    for key, feature in inputs.items():
        # the network fills in these itself
        if feature.type != 'VISUAL' or (config.get('empty_cameras') and _is_empty(key)):
            continue
        if len(feature.shape) != 3:
            raise PolicyError(
                f'{where}: the camera {key!r} must be channels x height x width, '
                f'got the shape {feature.shape}'
            )
        channels, height, width = feature.shape
        if channels > CHANNEL_LIMIT or max(height, width) > SIZE_LIMIT:
            raise PolicyError(
                f'{where}: the camera {key!r} is {feature.shape}; supported are at '
                f'most {CHANNEL_LIMIT} x {SIZE_LIMIT} x {SIZE_LIMIT}'
            )
        cameras.append(PolicyCamera(key, height, width, channels))
    pixels = config.get('n_obs_steps', 1) * sum(each.height * each.width for each in cameras)
    if pixels > PIXEL_LIMIT:
        raise PolicyError(
            f'{where}: an observation has {pixels} pixels, over all cameras and n_obs_steps; '
            f'at most {PIXEL_LIMIT} are supported'
        )
    return tuple(cameras)


def _is_empty(key: str) -> bool:
    return key.startswith(EMPTY_CAMERA)


def _wrong_names_text(parameter: str, names: tuple[str, ...], count: int) -> str:
    feature = DATASET_FEATURES[parameter]
    return (
        f'{parameter} must be {count} different names in the order of the training data, got '
        f'{list(names)}; the policy files lack them: they are in the meta/info.json of the '
        f'data set it was trained on, under features.{feature}.names'
    )


def _checked_action_names(held: Any, options: LoadOptions) -> tuple[str, ...]:
    """Return the names that a newer LeRobot writes into the configuration. Raises PolicyError."""
    if not isinstance(held, list):
        raise PolicyError(f'{ACTION_NAMES} must be a list of names, got {held!r:.80}')
    if options.action_names and list(options.action_names) != list(held):
        raise PolicyError(
            f'action_names is {list(options.action_names)}, but the policy was trained with '
            f'{list(held)} (its {ACTION_NAMES}); set these, or none'
        )
    return tuple(map(str, held))


@dataclass(frozen=True, slots=True)
class DatasetInfo:
    """Names and rate of the data set, empty or 0 if unknown; `file` is their source."""

    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    trained_fps: float = 0.0
    file: str = ''


def read_dataset_info(folder: Path) -> DatasetInfo:
    """Return the data set information of the policy in a folder. Never raises."""
    for file in _candidates(folder):
        content = _read(file)
        if content:
            features = content.get('features')
            features = features if isinstance(features, dict) else {}
            return DatasetInfo(
                _names(features.get(STATE)),
                _names(features.get(ACTION)),
                _rate(content.get('fps')),
                str(file),
            )
    return DatasetInfo()


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield the files that may describe the data set, nearest first."""
    yield folder / INFO_FILE
    training = _read(folder / TRAIN_FILE)
    config = training.get('dataset')
    if not isinstance(config, dict):
        return
    root, repository = config.get('root'), config.get('repo_id')
    if isinstance(root, str) and os.path.isabs(root):
        yield Path(root) / INFO_FILE
    elif isinstance(root, str) and (trained_in := _training_folder(folder, training)):
        yield trained_in / root / INFO_FILE
    if isinstance(repository, str) and REPOSITORY.fullmatch(repository):
        yield _home() / repository / INFO_FILE


def _training_folder(folder: Path, training: dict[str, Any]) -> Path | None:
    """
    Return the folder in which the training ran: relative paths of its configuration begin there.
    None where the checkpoint is not where the training wrote it, OUTPUT_DIR/checkpoints/STEP/NAME:
    a relative path could lead to another data set.
    """
    output = training.get('output_dir')
    if not isinstance(output, str) or not output or os.path.isabs(output):
        return None
    wanted = (*Path(output).parts, CHECKPOINTS_FOLDER)
    # the newest step is a link; the two below are the step and the folder of the weights
    parts = Path(os.path.realpath(folder)).parts[:-2]
    return Path(*parts[: -len(wanted)]) if parts[-len(wanted) :] == wanted else None


def _home() -> Path:
    """Return the folder in which LeRobot keeps data sets."""
    own, all_of_them = (os.environ.get(name) for name in HOME_VARIABLES)
    if own:
        return Path(own)
    cache = Path(all_of_them) if all_of_them else Path.home() / '.cache' / 'huggingface'
    return cache / 'lerobot'


def _read(file: Path) -> dict[str, Any]:
    """Return the JSON object of a regular file of bounded size, otherwise an empty one."""
    try:
        if not file.is_file() or file.stat().st_size > BYTES_LIMIT:
            return {}
        content = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _names(feature: Any) -> tuple[str, ...]:
    """Return the names of a feature: a list, or lists in a group such as `motors`."""
    names = feature.get('names') if isinstance(feature, dict) else None
    if isinstance(names, dict):
        lists = list(names.values())
        names = [name for each in lists if isinstance(each, list) for name in each]
    if not isinstance(names, list) or not 0 < len(names) <= NAMES_LIMIT:
        return ()
    fit = all(isinstance(n, str) and 0 < len(n.encode()) <= NAME_BYTES_LIMIT for n in names)
    return tuple(names) if fit and len(set(names)) == len(names) else ()


def _rate(value: Any) -> float:
    return float(value) if type(value) in (int, float) and 0 < value <= RATE_LIMIT_HZ else 0.0
