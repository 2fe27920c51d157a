# SPDX-License-Identifier: Apache-2.0
"""
Read the contract file of a remote policy: a YAML mapping with the address of the server, what its
policy reads and predicts, and the limits of a request. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, UNSET, UnsetType

from lerobot_serve.files.load import FILE_LIMIT_BYTES, load, Record, rule
from lerobot_serve.files.parsing import from_yaml, read
from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.policy_folder import check_inside
from lerobot_serve.policies.files.policy_json import Names, Size
from lerobot_serve.private_file import mode_of_others

KEY_LIMIT, MAX_NAME = 4096, 64
URL_MARK = ',url='
Text = Annotated[
    str,
    rule(
        str.isprintable, 'a text of 1 to 1024 printable characters', min_length=1, max_length=1024
    ),
]
Seconds = Annotated[float, Meta(gt=0, le=600, description='seconds above 0 and at most 600')]
Beside = Annotated[
    str,
    Meta(
        pattern=r'^[A-Za-z0-9_][A-Za-z0-9_.-]{0,1023}\Z',
        description='the name of a file beside the contract file',
    ),
]
# a key of the server -> names of ours
Parts = dict[Text, Names]


class CameraSize(Record, frozen=True):
    """The size of the images of a camera."""

    height: Size
    width: Size


class ContractFile(Record, frozen=True, kw_only=True):
    """The fields of every contract file; a protocol adds its options, UNSET if not given."""

    name: Annotated[
        str,
        rule(
            lambda name: '@' not in name,
            f'1 to {MAX_NAME} characters without @',
            min_length=1,
            max_length=MAX_NAME,
        ),
    ]
    state_names: Names
    action_names: Names
    chunk_steps: Size
    control_hz: Annotated[float, Meta(gt=0, le=1000)]
    url: Text = ''
    version: Annotated[
        str, Meta(min_length=1, max_length=1024, description='a text in quotes')
    ] = ''
    cameras: dict[Text, CameraSize] = {}
    connect_timeout_s: Seconds = 5.0
    predict_timeout_s: Seconds = 5.0
    max_reply_mb: Annotated[int, Meta(ge=1, le=1024)] = 16
    api_key_file: Beside = ''
    tls_ca_file: Beside = ''
    tls_certificate_file: Beside = ''
    tls_key_file: Beside = ''
    metadata_keys: Names = ()

    def __post_init__(self) -> None:
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise ValueError('tls_certificate_file and tls_key_file need each other')


class MappedContractFile(ContractFile, frozen=True, kw_only=True):
    """Of a protocol whose observations have keys of their own."""

    state: Parts | UnsetType = UNSET
    images: dict[Text, Text] | UnsetType = UNSET
    task: Text = ''
    actions: Parts | UnsetType = UNSET


COMMON = MappedContractFile.__struct_fields__


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


def read_contract(path: str, kind: type[ContractFile], image_prefix: str = '') -> RemoteContract:
    """
    Return the contract in FILE or FILE,url=URL; the given address wins over that of the file.

    `kind` has the fields of one protocol; `image_prefix`, before the name of a camera, is its key
    where the file has none. Raises PolicyError with file, field and rule.
    """
    name, _, given_url = path.partition(URL_MARK)
    file = Path(name)
    try:
        data = read(file, FILE_LIMIT_BYTES)
    except ValueError as error:
        raise PolicyError(
            f'the path of a remote policy is its contract file, FILE or FILE{URL_MARK}URL; '
            f'{name!r} {error}'
        ) from None
    try:
        given = load(kind, from_yaml(data), '')
    except ValueError as error:
        raise PolicyError(f'{file}: {error}') from None
    return _contract(file, given, given_url, image_prefix)


def _contract(file: Path, given: ContractFile, url: str, image_prefix: str) -> RemoteContract:
    if not (url or given.url):
        raise PolicyError(
            f'{file}: url is missing; add it to the file, or append it: {file}{URL_MARK}URL'
        )

    def given_or(name: str, default: Any) -> Any:
        value = getattr(given, name, UNSET)
        return default if value is UNSET else value

    states, actions = given.state_names, given.action_names
    images = given_or('images', {f'{image_prefix}{name}': name for name in given.cameras})
    if sorted(images.values()) != sorted(given.cameras):
        raise PolicyError(
            f'{file}: images must name each of the cameras {sorted(given.cameras)} once, '
            f'got {sorted(images.values())}'
        )
    own = [name for name in given.__struct_fields__ if name not in COMMON]
    return RemoteContract(
        url=url or given.url,
        name=given.name,
        version=given.version,
        state_names=states,
        action_names=actions,
        cameras=tuple(
            PolicyCamera(name, size.height, size.width) for name, size in given.cameras.items()
        ),
        chunk_steps=given.chunk_steps,
        control_hz=given.control_hz,
        state=_positions(file, 'state', given_or('state', {'state': states}), states),
        images=images,
        task=given_or('task', ''),
        actions=_columns(file, given_or('actions', {'actions': actions}), actions),
        connect_timeout_s=given.connect_timeout_s,
        predict_timeout_s=given.predict_timeout_s,
        max_reply_bytes=given.max_reply_mb << 20,
        api_key=_secret(file, given.api_key_file),
        tls=TlsFiles(
            _beside(file, given.tls_ca_file),
            _beside(file, given.tls_certificate_file),
            _beside(file, given.tls_key_file),
        ),
        metadata_keys=given.metadata_keys,
        options={name: value for name in own if (value := getattr(given, name)) is not UNSET},
    )


def _positions(
    file: Path, field: str, parts: Mapping[str, tuple[str, ...]], names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the positions of the names of each part. Raises PolicyError for an unknown name."""
    for part, given in parts.items():
        if unknown := [name for name in given if name not in names]:
            raise PolicyError(
                f'{file}: {field}: {part} names {unknown[0]!r}; allowed are {", ".join(names)}'
            )
    return {part: tuple(map(names.index, given)) for part, given in parts.items()}


def _columns(
    file: Path, parts: Mapping[str, tuple[str, ...]], names: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the columns of each part; together they are every action once."""
    columns = _positions(file, 'actions', parts, names)
    if sorted(i for part in columns.values() for i in part) != list(range(len(names))):
        raise PolicyError(f'{file}: actions must name each of action_names once, got {parts}')
    return columns


def _beside(file: Path, name: str) -> str:
    """
    Return the path of a file beside the contract file, '' for none. Raises PolicyError for a link
    away.
    """
    if not name:
        return ''
    path = file.parent / name
    check_inside(path, file.parent)
    return str(path)


def _secret(file: Path, name: str) -> str:
    """Return the content of a file that only its owner may read."""
    path = _beside(file, name)
    if not path:
        return ''
    try:
        mode = mode_of_others(Path(path))
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
