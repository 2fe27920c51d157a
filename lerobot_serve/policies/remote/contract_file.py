# SPDX-License-Identifier: Apache-2.0
"""
Read the contract file of a remote policy: a YAML mapping with the address of the server, what its
policy reads and predicts, and the limits of a request. Any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import field, Meta, structs, UNSET, UnsetType

from lerobot_serve.files.load import FILE_LIMIT_BYTES, load, Record, rule
from lerobot_serve.files.parsing import from_yaml, read
from lerobot_serve.policies.base import PolicyCamera, PolicyError
from lerobot_serve.policies.files.policy_folder import check_inside, Names, Size
from lerobot_serve.private_file import mode_of_others

KEY_LIMIT, MAX_NAME = 4096, 64
URL_MARK = ',url='
FILES = ('api_key_file', 'tls_ca_file', 'tls_certificate_file', 'tls_key_file')
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


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Certificate authority of the server, and certificate and key of this client; may be ''."""

    authority: str = ''
    certificate: str = ''
    key: str = ''


class RemoteContract(Record, frozen=True, kw_only=True, dict=True):
    """
    The fields of every contract file; a protocol adds its options, UNSET if not given.

    `name` and `version` are the operator's words for the policy and part of its fingerprint, as is
    the metadata of the server, or of it the `metadata_keys` alone. `state` maps a key of the
    server to positions in our state, `images` to our camera, `actions` to columns of our chunk, in
    the order of the file. `read_contract` replaces the names of files by their paths.
    """

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
    camera_sizes: dict[Text, CameraSize] = field(name='cameras', default_factory=dict)
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

    @cached_property
    def cameras(self) -> tuple[PolicyCamera, ...]:
        sizes = self.camera_sizes.items()
        return tuple(PolicyCamera(name, size.height, size.width) for name, size in sizes)

    @property
    def images(self) -> Mapping[str, str]:
        keys: dict[str, str] | UnsetType = getattr(self, 'image_keys', UNSET)
        return {name: name for name in self.camera_sizes} if keys is UNSET else keys

    @property
    def task(self) -> str:
        return str(getattr(self, 'task_key', ''))

    @cached_property
    def state(self) -> Mapping[str, tuple[int, ...]]:
        return self._positions('state', self.state_names)

    @cached_property
    def actions(self) -> Mapping[str, tuple[int, ...]]:
        return self._positions('actions', self.action_names)

    @property
    def options(self) -> Mapping[str, Any]:
        """The fields of one protocol that are given."""
        own = [name for name in self.__struct_fields__ if name not in COMMON]
        return {name: value for name in own if (value := getattr(self, name)) is not UNSET}

    @property
    def max_reply_bytes(self) -> int:
        return self.max_reply_mb << 20

    @property
    def tls(self) -> TlsFiles:
        return TlsFiles(self.tls_ca_file, self.tls_certificate_file, self.tls_key_file)

    @cached_property
    def api_key(self) -> str:
        """The key as `read_contract` found it, '' for none. Raises ValueError."""
        return _secret(self.api_key_file) if self.api_key_file else ''

    def _positions(self, field: str, names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
        """Return the positions of each part; without keys in the file it is one part."""
        keys: Parts | UnsetType = getattr(self, f'{field}_keys', UNSET)
        parts = {field: names} if keys is UNSET else keys
        return {part: tuple(map(names.index, given)) for part, given in parts.items()}


class MappedContractFile(RemoteContract, frozen=True, kw_only=True):
    """Of a protocol whose observations have keys of their own."""

    state_keys: Parts | UnsetType = field(name='state', default=UNSET)
    image_keys: dict[Text, Text] | UnsetType = field(name='images', default=UNSET)
    task_key: Text = field(name='task', default='')
    actions_keys: Parts | UnsetType = field(name='actions', default=UNSET)

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(self.images.values()) != sorted(self.camera_sizes):
            raise ValueError(
                f'images must name each of the cameras {sorted(self.camera_sizes)} once, '
                f'got {sorted(self.images.values())}'
            )
        _check_names('state', self.state_keys, self.state_names)
        _check_names('actions', self.actions_keys, self.action_names)
        # together the parts are every action once
        columns = sorted(column for part in self.actions.values() for column in part)
        if columns != list(range(len(self.action_names))):
            raise ValueError(
                f'actions must name each of action_names once, got {self.actions_keys}'
            )


COMMON = MappedContractFile.__struct_fields__
T = TypeVar('T', bound=RemoteContract)


def read_contract(path: str, kind: type[T], image_prefix: str = '') -> T:
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
        if not (given_url or given.url):
            raise ValueError(
                f'url is missing; add it to the file, or append it: {file}{URL_MARK}URL'
            )
        changes: dict[str, Any] = {each: _beside(file, getattr(given, each)) for each in FILES}
        if getattr(given, 'image_keys', None) is UNSET:
            changes['image_keys'] = {f'{image_prefix}{each}': each for each in given.camera_sizes}
        contract = structs.replace(given, url=given_url or given.url, **changes)
        # read now: one that cannot be is refused before a connection is opened
        _ = contract.api_key
    except ValueError as error:
        raise PolicyError(f'{file}: {error}') from None
    return contract


def _check_names(
    field: str, parts: dict[str, tuple[str, ...]] | UnsetType, names: tuple[str, ...]
) -> None:
    """Raise ValueError for a part with an unknown name."""
    for part, given in ({} if parts is UNSET else parts).items():
        if unknown := [name for name in given if name not in names]:
            raise ValueError(
                f'{field}: {part} names {unknown[0]!r}; allowed are {", ".join(names)}'
            )


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


def _secret(path: str) -> str:
    """Return the content of a file that only its owner may read. Raises ValueError."""
    try:
        mode = mode_of_others(Path(path))
        with open(path, encoding='ascii') as handle:
            text = handle.read(KEY_LIMIT + 1).strip()
    except (OSError, ValueError) as error:
        raise ValueError(f'cannot read api_key_file {path}: {error}') from None
    if mode:
        raise ValueError(
            f'others may read api_key_file {path} (mode {mode:03o}); run `chmod 600 {path}`'
        )
    if not 0 < len(text) <= KEY_LIMIT or not text.isprintable():
        raise ValueError(f'api_key_file {path} must hold one key on one line')
    return text
