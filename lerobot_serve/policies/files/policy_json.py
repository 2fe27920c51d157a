# SPDX-License-Identifier: Apache-2.0
"""
Read and check policy.json, the plain data that describes a policy of this package.

A missing, unknown or invalid field is refused by name. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.file_headers import read_json

SETTINGS_FILE = 'policy.json'
FORMAT_VERSION = 1
IDENTIFIER = re.compile(r'[A-Za-z0-9_.-]{1,64}')
SIZE_LIMIT = 4096
RATE_LIMIT_HZ = 1000


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The rule of one field: its description and its test."""

    text: str
    is_valid: Callable[[Any], bool]


def one_of(*allowed: Any) -> FieldRule:
    """Return the rule for one of these values, type included."""
    return FieldRule(
        ' or '.join(map(repr, allowed)),
        lambda value: any(type(value) is type(one) and value == one for one in allowed),
    )


def is_size(value: Any) -> bool:
    return type(value) is int and 1 <= value <= SIZE_LIMIT


def _is_rate(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= RATE_LIMIT_HZ


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 128


def is_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(map(_is_name, value))
        and len(set(value)) == len(value)
    )


SIZE = FieldRule(f'a whole number from 1 to {SIZE_LIMIT}', is_size)
NAMES = FieldRule('a list of different names', is_names)
OBJECT = FieldRule('a group of fields', lambda value: isinstance(value, dict))
LIST = FieldRule('a list', lambda value: isinstance(value, list))
CAMERA_FIELDS = {'name': FieldRule('a name', _is_name), 'height': SIZE, 'width': SIZE}
COMMON_FIELDS = {
    'format_version': FieldRule(
        f'{FORMAT_VERSION} (other versions need another lerobot_serve)',
        lambda value: type(value) is int and value == FORMAT_VERSION,
    ),
    'id': FieldRule(
        '1 to 64 letters, digits and ._-',
        lambda value: isinstance(value, str) and bool(IDENTIFIER.fullmatch(value)),
    ),
    'state_names': NAMES,
    'action_names': NAMES,
    'cameras': LIST,
    'chunk_size': SIZE,
    'trained_fps': FieldRule(f'a number above 0 and at most {RATE_LIMIT_HZ}', _is_rate),
}


def read_fields(
    file: Path, rules: dict[str, FieldRule], optional: dict[str, FieldRule] | None = None
) -> dict[str, Any]:
    """
    Return the checked fields of a JSON file; `optional` ones may be missing.

    Raises PolicyError.
    """
    values = read_json(file)
    given = {
        name: rule
        for name, rule in (optional or {}).items()
        if isinstance(values, dict) and name in values
    }
    check_fields(values, rules | given, str(file))
    for number, camera in enumerate(values['cameras']):
        check_fields(camera, CAMERA_FIELDS, f'{file}: cameras[{number}]')
    names = [camera['name'] for camera in values['cameras']]
    if len(set(names)) < len(names):
        raise PolicyError(f'{file}: the cameras must have different names, got {names}')
    fields: dict[str, Any] = values
    return fields


def cameras(values: dict[str, Any]) -> tuple[PolicyCamera, ...]:
    """Return the cameras of checked fields."""
    return tuple(PolicyCamera(**camera) for camera in values['cameras'])


def check_fields(values: Any, rules: dict[str, FieldRule], where: str) -> None:
    """Raise PolicyError unless the values have exactly these fields and all are valid."""
    if not isinstance(values, dict):
        raise PolicyError(
            f'{where} must be a group of fields {", ".join(rules)}, got {values!r:.60}'
        )
    for name in values:
        if name not in rules:
            raise PolicyError(f'{where}: {name!r} is not a field; allowed are {", ".join(rules)}')
    for name, rule in rules.items():
        if name not in values:
            raise PolicyError(f'{where}: {name} is missing; it must be {rule.text}')
        if not rule.is_valid(values[name]):
            raise PolicyError(f'{where}: {name} must be {rule.text}, got {values[name]!r:.60}')
