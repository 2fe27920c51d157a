# SPDX-License-Identifier: Apache-2.0
"""
Read the contract file of a remote policy: a YAML mapping with the address of the server, what its
policy reads and predicts, and the limits of a request. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
import re
from typing import Any

import yaml

from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.policy_folder import check_inside
from lerobot_serve.policies.files.policy_json import check_fields, FieldRule, is_names, SIZE
from lerobot_serve.policies.files.unique_keys import UniqueKeys
from lerobot_serve.private_file import mode_of_others

FILE_LIMIT_BYTES, KEY_LIMIT = 1 << 20, 4096
FILE_NAME = re.compile(r'\w[\w.-]*', re.ASCII)
URL_MARK = ',url='
MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate authority of the server, and certificate and key of this client; may be ''."""

    authority: str = ''
    certificate: str = ''
    key: str = ''


@dataclass(frozen=True, slots=True)
class RemoteContract:
    """
    The checked content of a contract file.

    `name` and `version` are the operator's words for the policy and part of its fingerprint, as is
    the metadata of the server, or of it the `metadata_keys` alone. `state` maps a key of the
    server to positions in our state, `images` to our camera, `actions` to columns of our chunk, in
    the order of the file. `options` are those of one protocol.
    """

    url: str
    name: str
    version: str
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    cameras: tuple[PolicyCamera, ...]
    chunk_steps: int
    control_hz: float
    state: Mapping[str, tuple[int, ...]]
    images: Mapping[str, str]
    task: str
    actions: Mapping[str, tuple[int, ...]]
    connect_timeout_s: float
    predict_timeout_s: float
    max_reply_bytes: int
    api_key: str
    tls: TlsFiles
    metadata_keys: tuple[str, ...]
    options: Mapping[str, Any]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 1024


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value <= 600


def _is_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_text, value))


def _is_file_name(value: Any) -> bool:
    return _is_text(value) and bool(FILE_NAME.fullmatch(value))


def _is_name(value: Any) -> bool:
    return _is_text(value) and len(value) <= MAX_NAME and '@' not in value


TEXT = FieldRule('a text of 1 to 1024 characters', _is_text)
BESIDE = FieldRule('the name of a file beside the contract file', _is_file_name)
NAMES = FieldRule('a list of different names', is_names)
SECONDS = FieldRule('seconds above 0 and at most 600', _is_seconds)
KEYS_TO_NAMES = FieldRule(
    'a mapping from a key of the server to a list of names',
    lambda value: _is_mapping(value) and all(map(is_names, value.values())),
)
REQUIRED = {
    'name': FieldRule(f'1 to {MAX_NAME} characters without @', _is_name),
    'state_names': NAMES,
    'action_names': NAMES,
    'chunk_steps': SIZE,
    'control_hz': FieldRule(
        'a number above 0 and at most 1000',
        lambda value: type(value) in (int, float) and 0 < value <= 1000,
    ),
}
OPTIONAL = {
    'url': TEXT,
    'version': FieldRule('a text in quotes', _is_text),
    'cameras': FieldRule('a mapping from a name to height and width', _is_mapping),
    'connect_timeout_s': SECONDS,
    'predict_timeout_s': SECONDS,
    'max_reply_mb': FieldRule(
        'a whole number from 1 to 1024', lambda value: type(value) is int and 1 <= value <= 1024
    ),
    'api_key_file': BESIDE,
    'tls_ca_file': BESIDE,
    'tls_certificate_file': BESIDE,
    'tls_key_file': BESIDE,
    'metadata_keys': NAMES,
}
# of the protocols whose observations have keys of their own
MAPPING = {
    'state': KEYS_TO_NAMES,
    'images': FieldRule(
        'a mapping from a key of the server to a camera',
        lambda value: _is_mapping(value) and all(map(_is_text, value.values())),
    ),
    'task': TEXT,
    'actions': KEYS_TO_NAMES,
}
CAMERA = {'height': SIZE, 'width': SIZE}


def read_contract(
    path: str, rules: Mapping[str, FieldRule], *, mapped: bool, image_prefix: str = ''
) -> RemoteContract:
    """
    Return the contract in FILE or FILE,url=URL; the given address wins over that of the file.

    `rules` are those of the options of one protocol; `mapped`: its observations have keys;
    `image_prefix`, before the name of a camera, is its key where the file has none. Raises
    PolicyError with file, field and rule.
    """
    name, _, given_url = path.partition(URL_MARK)
    file = Path(name)
    values = _load(file)
    allowed = OPTIONAL | dict(rules) | (MAPPING if mapped else {})
    given = {key: rule for key, rule in allowed.items() if key in values}
    try:
        check_fields(values, REQUIRED | given, str(file))
    except PolicyError as error:
        unknown = [key for key in values if key not in REQUIRED | allowed]
        if not unknown:
            raise
        listed = ', '.join([*REQUIRED, *allowed])
        raise PolicyError(
            f'{file}: {unknown[0]!r} is not a field; allowed are {listed}'
        ) from error
    url = given_url or values.get('url', '')
    if not url:
        raise PolicyError(
            f'{file}: url is missing; add it to the file, or append it: {name}{URL_MARK}URL'
        )
    values.setdefault(
        'images', {f'{image_prefix}{name}': name for name in values.get('cameras', {})}
    )
    return _contract(file, values, url, {key: values[key] for key in rules if key in values})


def _contract(
    file: Path, values: dict[str, Any], url: str, options: dict[str, Any]
) -> RemoteContract:
    cameras = _cameras(file, values.get('cameras', {}))
    states, actions = tuple(values['state_names']), tuple(values['action_names'])
    images = values['images']
    _check_images(file, images, cameras)
    return RemoteContract(
        url=url,
        name=values['name'],
        version=values.get('version', ''),
        state_names=states,
        action_names=actions,
        cameras=cameras,
        chunk_steps=values['chunk_steps'],
        control_hz=float(values['control_hz']),
        state=_positions(file, 'state', values.get('state', {'state': [*states]}), states),
        images=images,
        task=values.get('task', ''),
        actions=_columns(file, values.get('actions', {'actions': [*actions]}), actions),
        connect_timeout_s=float(values.get('connect_timeout_s', 5.0)),
        predict_timeout_s=float(values.get('predict_timeout_s', 5.0)),
        max_reply_bytes=values.get('max_reply_mb', 16) << 20,
        api_key=_secret(file, values.get('api_key_file', '')),
        tls=_tls(file, values),
        metadata_keys=tuple(values.get('metadata_keys', ())),
        options=options,
    )


def _load(file: Path) -> dict[str, Any]:
    """Return the mapping in a file. Raises PolicyError."""
    try:
        with open(file, 'rb') as handle:
            data = handle.read(FILE_LIMIT_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PolicyError(
            f'the path of a remote policy is its contract file, FILE or FILE{URL_MARK}URL; '
            f'cannot read {str(file)!r}: {getattr(error, "strerror", None) or error}'
        ) from None
    if len(data) > FILE_LIMIT_BYTES:
        raise PolicyError(f'{file}: over {FILE_LIMIT_BYTES} bytes, which no contract file is')
    try:
        values = yaml.load(data, UniqueKeys)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        text = ' '.join(str(error).split())
        raise PolicyError(f'{file}: not valid YAML: {text:.300}') from None
    if not isinstance(values, dict):
        raise PolicyError(f'{file}: must be a mapping of fields, got {values!r:.60}')
    return values


def _cameras(file: Path, values: dict[str, Any]) -> tuple[PolicyCamera, ...]:
    for name, size in values.items():
        check_fields(size, CAMERA, f'{file}: cameras: {name}')
    return tuple(PolicyCamera(name, **size) for name, size in values.items())


def _check_images(file: Path, images: dict[str, str], cameras: tuple[PolicyCamera, ...]) -> None:
    names = sorted(camera.name for camera in cameras)
    if sorted(images.values()) != names:
        raise PolicyError(
            f'{file}: images must name each of the cameras {names} once, '
            f'got {sorted(images.values())}'
        )


def _positions(
    file: Path, field: str, parts: dict[str, list[str]], names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the positions of the names of each part. Raises PolicyError for an unknown name."""
    for part, given in parts.items():
        if unknown := [name for name in given if name not in names]:
            raise PolicyError(
                f'{file}: {field}: {part} names {unknown[0]!r}; allowed are {", ".join(names)}'
            )
    return {part: tuple(map(names.index, given)) for part, given in parts.items()}


def _columns(
    file: Path, parts: dict[str, list[str]], names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the columns of each part; together they are every action once."""
    columns = _positions(file, 'actions', parts, names)
    if sorted(i for part in columns.values() for i in part) != list(range(len(names))):
        raise PolicyError(f'{file}: actions must name each of action_names once, got {parts}')
    return columns


def _tls(file: Path, values: dict[str, Any]) -> TlsFiles:
    """Return the paths of the TLS files."""
    fields = ('tls_ca_file', 'tls_certificate_file', 'tls_key_file')
    paths = [str(_beside(file, values[field])) if field in values else '' for field in fields]
    if bool(paths[1]) != bool(paths[2]):
        raise PolicyError(f'{file}: tls_certificate_file and tls_key_file need each other')
    return TlsFiles(*paths)


def _beside(file: Path, name: str) -> Path:
    """Return the path of a file beside the contract file. Raises PolicyError for a link away."""
    path = file.parent / name
    check_inside(path, file.parent)
    return path


def _secret(file: Path, name: str) -> str:
    """Return the content of a file that only its owner may read."""
    if not name:
        return ''
    path = _beside(file, name)
    try:
        mode = mode_of_others(path)
        with open(path, encoding='ascii') as handle:
            text = handle.read(KEY_LIMIT + 1).strip()
    except (OSError, ValueError) as error:
        raise PolicyError(f'{file}: cannot read api_key_file {path}: {error}') from None
    if mode:
        raise PolicyError(
            f'{file}: others may read api_key_file {path} (mode {mode:03o}); '
            f'run `chmod 600 {path}`'
        )
    if not 0 < len(text) <= KEY_LIMIT or not text.isprintable():
        raise PolicyError(f'{file}: api_key_file {path} must hold one key on one line')
    return text
