"""
What a policy takes and gives, from its configuration and from what the operator says.

LeRobot's files hold no names of joints and no rate; those are in the data set that the policy was
trained on, and the operator gives them. No torch, any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lerobot_serve.policies.base import Camera, Loading, PolicyError
from lerobot_serve.policies.lerobot.folder import CONFIG_FILE, Folder
from lerobot_serve.policies.settings import SIZE_LIMIT

STATE, ACTION = 'observation.state', 'action'
EMPTY_CAMERA = 'observation.images.empty_camera_'
ACTION_NAMES = 'action_feature_names'
FEATURE_LIMIT, CHANNEL_LIMIT, PIXEL_LIMIT = 32, 4, 1 << 25
DATASET_FEATURES = {'state_names': f'"{STATE}"', 'action_names': ACTION}


@dataclass(frozen=True, slots=True)
class Features:
    """The values and cameras of one policy; without a state there are no state names."""

    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[Camera, ...]
    trained_fps: float


def read_features(folder: Folder, loading: Loading) -> Features:
    """Return what the policy takes and gives. Raises PolicyError."""
    where = str(folder.path / CONFIG_FILE)
    inputs = _features(where, folder.config, 'input_features')
    outputs = _features(where, folder.config, 'output_features')
    for key, feature in inputs.items():
        if feature.type != 'VISUAL' and (key, feature.type) != (STATE, 'STATE'):
            raise _unserved(where, key, feature.type)
    for key, feature in outputs.items():
        if (key, feature.type) != (ACTION, 'ACTION'):
            raise _unserved(where, key, feature.type)
    if ACTION not in outputs:
        raise PolicyError(f'{where} has no {ACTION!r} in output_features; train the policy anew')
    state_count = _count(where, inputs, STATE) if STATE in inputs else 0
    if not 0 < loading.trained_fps < float('inf'):
        raise PolicyError(
            f'trained_fps must be given and above 0, got {loading.trained_fps:g}: the fps of the '
            "data set that the policy was trained on, in its meta/info.json under 'fps'"
        )
    return Features(
        _names('state_names', loading.state_names, state_count),
        _action_names(folder.config, loading, _count(where, outputs, ACTION)),
        _cameras(where, folder.config, inputs),
        loading.trained_fps,
    )


@dataclass(frozen=True, slots=True)
class Feature:
    """One entry of the configuration."""

    type: str
    shape: tuple[int, ...]


def _features(where: str, config: dict[str, Any], name: str) -> dict[str, Feature]:
    entries = config.get(name)
    if not isinstance(entries, dict) or not entries:
        raise PolicyError(
            f'{where} has no {name}, so it does not say what the policy takes and gives; give the '
            "directory that LeRobot's training wrote"
        )
    if len(entries) > FEATURE_LIMIT:
        raise PolicyError(f'{where}: {name} has {len(entries)} entries, at most {FEATURE_LIMIT}')
    return {key: _feature(f'{where}: {name}: {key:.80}', entry) for key, entry in entries.items()}


def _feature(where: str, entry: object) -> Feature:
    if isinstance(entry, dict):
        kind, shape = entry.get('type'), entry.get('shape')
        sizes = isinstance(shape, list) and all(type(size) is int and size > 0 for size in shape)
        if isinstance(kind, str) and sizes:
            return Feature(kind, tuple(shape))
    raise PolicyError(
        f"{where} must have a 'type' and a 'shape' of sizes above 0, got {entry!r:.80}"
    )


def _unserved(where: str, key: str, kind: str) -> PolicyError:
    return PolicyError(
        f'{where} has the feature {key!r} of the type {kind}, which no observation here carries; '
        f'served are {STATE!r}, cameras, and {ACTION!r}: train the policy without it'
    )


def _count(where: str, features: dict[str, Feature], key: str) -> int:
    shape = features[key].shape
    if shape and shape[0] > SIZE_LIMIT:
        raise PolicyError(f'{where}: {key!r} has {shape[0]} values, served are {SIZE_LIMIT}')
    if len(shape) != 1:
        raise PolicyError(f'{where}: {key!r} must be a list of values, got the shape {shape}')
    return shape[0]


def _cameras(where: str, config: dict[str, Any], inputs: dict[str, Feature]) -> tuple[Camera, ...]:
    cameras = []
    for key, feature in inputs.items():
        # the network fills these in itself
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
                f'{where}: the camera {key!r} is {feature.shape}; served are at most '
                f'{CHANNEL_LIMIT} x {SIZE_LIMIT} x {SIZE_LIMIT}'
            )
        cameras.append(Camera(key, height, width, channels))
    pixels = config.get('n_obs_steps', 1) * sum(each.height * each.width for each in cameras)
    if pixels > PIXEL_LIMIT:
        raise PolicyError(
            f'{where}: an observation has {pixels} pixels, over all cameras and n_obs_steps; '
            f'served are at most {PIXEL_LIMIT}'
        )
    return tuple(cameras)


def _is_empty(key: str) -> bool:
    return key.startswith(EMPTY_CAMERA)


def _names(parameter: str, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    if len(names) == count and len(set(names)) == count and all(names):
        return tuple(names)
    feature = DATASET_FEATURES[parameter]
    raise PolicyError(
        f'{parameter} must be {count} different names in the order of the training data, got '
        f'{list(names)}; the policy does not hold them: they are in the meta/info.json of the '
        f'data set it was trained on, under features.{feature}.names'
    )


def _action_names(config: dict[str, Any], loading: Loading, count: int) -> tuple[str, ...]:
    """Return the names; a newer LeRobot writes them into the configuration."""
    held = config.get(ACTION_NAMES)
    if not held:
        return _names('action_names', loading.action_names, count)
    if loading.action_names and list(loading.action_names) != list(held):
        raise PolicyError(
            f'action_names is {list(loading.action_names)}, but the policy was trained with '
            f'{list(held)} (its {ACTION_NAMES}); give these, or none'
        )
    return _names('action_names', tuple(map(str, held)), count)
