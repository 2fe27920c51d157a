# SPDX-License-Identifier: Apache-2.0
"""Read and check policy.json of the demo policy. No torch, any thread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.fingerprint import fingerprint
from lerobot_serve.policies.files.policy_json import (
    cameras,
    check_fields,
    COMMON_FIELDS,
    FieldRule,
    is_size,
    OBJECT,
    one_of,
    read_fields,
    SETTINGS_FILE,
    SIZE,
)
from lerobot_serve.policies.files.version_folder import version_name

KIND = 'builtin.reach'
WEIGHTS_FILE = 'model.safetensors'


@dataclass(frozen=True, slots=True)
class ReachSettings:
    """The fields of policy.json; `cameras` are the fixed one and the wrist's, in this order."""

    id: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[PolicyCamera, ...]
    chunk_size: int
    trained_fps: float
    image_pixels: int
    channels: tuple[int, int]
    hidden: int


def read_settings(file: Path) -> ReachSettings:
    """Return the content of policy.json. Raises PolicyError; it names file, field and rule."""
    values = read_fields(file, REACH_FIELDS)
    check_fields(values['network'], NETWORK_FIELDS, f'{file}: network')
    if values['action_names'] != values['state_names']:
        raise PolicyError(
            f'{file}: action_names must equal state_names, because the chunk is relative '
            f'to the state, got {values["action_names"]} and {values["state_names"]}'
        )
    return ReachSettings(
        id=values['id'],
        state_names=tuple(values['state_names']),
        action_names=tuple(values['action_names']),
        cameras=cameras(values),
        chunk_size=values['chunk_size'],
        trained_fps=float(values['trained_fps']),
        image_pixels=values['network']['image_pixels'],
        channels=tuple(values['network']['channels']),
        hidden=values['network']['hidden'],
    )


def policy_fingerprint(folder: Path, settings: ReachSettings, name: str = '') -> str:
    """Return the fingerprint of a folder; `name` is that of the operator. Raises PolicyError."""
    files = [folder / SETTINGS_FILE, folder / WEIGHTS_FILE]
    try:
        return fingerprint(name or version_name(folder) or settings.id, files)
    except OSError as error:
        raise PolicyError(f'cannot read the policy: {error}') from error


def _is_channels(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(is_size, value))


REACH_FIELDS = {
    **COMMON_FIELDS,
    'kind': one_of(KIND),
    'cameras': FieldRule(
        "a list of two cameras, the fixed one and the wrist's",
        lambda value: isinstance(value, list) and len(value) == 2,
    ),
    'network': OBJECT,
}
NETWORK_FIELDS = {
    'image_pixels': SIZE,
    'channels': FieldRule('a list of two whole numbers', _is_channels),
    'hidden': SIZE,
}
