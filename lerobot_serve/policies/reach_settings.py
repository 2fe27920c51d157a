"""Reading and checking policy.json of the demo policy; plain Python, any thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import json
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import Camera, PolicyError

FORMAT_VERSION = 1
KIND = 'builtin.reach'
IDENTIFIER = re.compile(r'[A-Za-z0-9_.-]{1,64}')
SIZE_LIMIT = 4096
RATE_LIMIT_HZ = 1000


@dataclass(frozen=True, slots=True)
class Settings:
    """policy.json, field by field; `cameras` are the fixed one and the wrist's, in this order."""

    id: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[Camera, ...]
    chunk_size: int
    trained_fps: float
    image_pixels: int
    channels: tuple[int, int]
    hidden: int


def read_settings(file: Path) -> Settings:
    """Return what policy.json says. Raises PolicyError; it names file, field and rule."""
    try:
        values = json.loads(file.read_text(encoding='utf-8'))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(
            f'{file} is not readable JSON ({error}); copy the folder again'
        ) from error
    _check(values, FIELDS, str(file))
    _check(values['network'], NETWORK, f'{file}: network')
    for number, camera in enumerate(values['cameras']):
        _check(camera, CAMERA, f'{file}: cameras[{number}]')
    if values['action_names'] != values['state_names']:
        raise PolicyError(
            f'{file}: action_names must equal state_names, because the chunk is relative '
            f'to the state, got {values["action_names"]} and {values["state_names"]}'
        )
    if not _is_names([camera['name'] for camera in values['cameras']]):
        raise PolicyError(
            f'{file}: the cameras must have different names, got {values["cameras"]}'
        )
    return Settings(
        values['id'],
        tuple(values['state_names']),
        tuple(values['action_names']),
        tuple(Camera(**camera) for camera in values['cameras']),
        values['chunk_size'],
        float(values['trained_fps']),
        values['network']['image_pixels'],
        tuple(values['network']['channels']),
        values['network']['hidden'],
    )


@dataclass(frozen=True, slots=True)
class Rule:
    """What one field must be: in words, and as a test."""

    text: str
    holds: Callable[[Any], bool]


def _is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= SIZE_LIMIT


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= RATE_LIMIT_HZ


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 128


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(map(_is_name, value))
        and len(set(value)) == len(value)
    )


def _is_channels(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_size, value))


SIZE = Rule(f'a whole number from 1 to {SIZE_LIMIT}', _is_size)
NAMES = Rule('a list of different names', _is_names)
FIELDS = {
    'format_version': Rule(
        f'{FORMAT_VERSION} (another one needs another lerobot_serve)',
        lambda value: type(value) is int and value == FORMAT_VERSION,
    ),
    'kind': Rule(f'{KIND!r}', lambda value: value == KIND),
    'id': Rule(
        '1 to 64 letters, digits and ._-',
        lambda value: isinstance(value, str) and bool(IDENTIFIER.fullmatch(value)),
    ),
    'state_names': NAMES,
    'action_names': NAMES,
    'cameras': Rule(
        "a list of two cameras, the fixed one and the wrist's",
        lambda value: isinstance(value, list) and len(value) == 2,
    ),
    'chunk_size': SIZE,
    'trained_fps': Rule(f'a number above 0 and at most {RATE_LIMIT_HZ}', _is_rate),
    'network': Rule('a group of fields', lambda value: isinstance(value, dict)),
}
NETWORK = {
    'image_pixels': SIZE,
    'channels': Rule('a list of two whole numbers', _is_channels),
    'hidden': SIZE,
}
CAMERA = {'name': Rule('a name', _is_name), 'height': SIZE, 'width': SIZE}


def _check(values: Any, rules: dict[str, Rule], where: str) -> None:
    if not isinstance(values, dict):
        raise PolicyError(
            f'{where} must be a group of fields {", ".join(rules)}, got {values!r:.60}'
        )
    for name in values:
        if name not in rules:
            raise PolicyError(f'{where}: {name!r} is not a field; there are {", ".join(rules)}')
    for name, rule in rules.items():
        if name not in values:
            raise PolicyError(f'{where}: {name} is missing; it must be {rule.text}')
        if not rule.holds(values[name]):
            raise PolicyError(f'{where}: {name} must be {rule.text}, got {values[name]!r:.60}')
