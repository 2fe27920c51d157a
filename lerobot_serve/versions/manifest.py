# SPDX-License-Identifier: Apache-2.0
"""
The manifest of a version: what it is, where it comes from, and each file with size and SHA-256;
and what differs between two versions, by their manifests alone. Any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
import json
import os
from pathlib import Path
import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from lerobot_serve.files.load import load, Record, Refused, rule
from lerobot_serve.files.parsing import from_json, read
from lerobot_serve.versions.errors import ManifestError

FORMAT_VERSION = 1
MANIFEST_FILE = 'version.json'
NAME_FORM, HASH_FORM = r'[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}', r'[0-9a-f]{16}'
ID = re.compile(f'({NAME_FORM})@({HASH_FORM})')
ID_TEXT = 'NAME@HASH: 1 to 64 letters, digits or ._-, then @ and 16 hexadecimal digits'
SHA256 = re.compile(r'[0-9a-f]{64}')
SOURCE = re.compile(r'(https?://|/)\S+')
TIME_FORMAT = '%Y-%m-%dT%H:%M:%SZ'
FILE_LIMIT, DEPTH_LIMIT, PATH_LIMIT, PART_LIMIT = 1000, 8, 512, 255
SIZE_LIMIT_BYTES, MANIFEST_LIMIT_BYTES = 1 << 44, 1 << 20
NOTE_LIMIT, SOURCE_LIMIT, SOURCE_LENGTH = 1000, 8, 512
PATH_TEXT = (
    f'relative, at most {PATH_LIMIT} bytes and {DEPTH_LIMIT} parts between /, each part '
    f'printable, without \\ and without a leading dot; not {MANIFEST_FILE}'
)


def is_path(path: str) -> bool:
    """Return whether this is the relative path of a file below a folder."""
    # a surrogate is not printable
    if not path.isprintable() or '\\' in path or path == MANIFEST_FILE:
        return False
    parts = path.split('/')
    is_short = len(path.encode()) <= PATH_LIMIT and len(parts) <= DEPTH_LIMIT
    return is_short and all(
        part and not part.startswith('.') and len(part.encode()) <= PART_LIMIT for part in parts
    )


def _is_time(text: str) -> bool:
    try:
        return datetime.strptime(text, TIME_FORMAT).strftime(TIME_FORMAT) == text
    except ValueError:
        return False


def _form(form: str, allowed: str) -> Meta:
    return Meta(pattern=rf'^({form})\Z', description=allowed)


Digest = Annotated[str, _form(SHA256.pattern, '64 hexadecimal digits')]


class ManifestFile(Record, frozen=True):
    """One file; `path` is relative to the folder of the version, with / between its parts."""

    path: Annotated[str, rule(is_path, PATH_TEXT)]
    size_bytes: Annotated[
        int, Meta(ge=0, le=SIZE_LIMIT_BYTES, description=f'0 to {SIZE_LIMIT_BYTES}')
    ]
    sha256: Digest


def _are_ordered(files: list[dict[str, Any]]) -> bool:
    """Return whether paths are different, in their order, and none is below a file."""
    paths = [each['path'] for each in files]
    known = set(paths)
    parents = (
        path.rsplit('/', depth)[0] for path in paths for depth in range(1, path.count('/') + 1)
    )
    return paths == sorted(known) and not known.intersection(parents)


class FormatVersion(Struct, frozen=True):
    """Checked before the other fields: another version of the format may have others."""

    format_version: Annotated[
        Literal[1], Meta(description=f'{FORMAT_VERSION} (use the lerobot_serve that wrote it)')
    ]


class Manifest(Record, frozen=True):
    """
    id              the fingerprint that a policy server computes for these files
    policy_kind     such as lerobot or builtin
    created         UTC, as in TIME_FORMAT
    files           in the order of their paths
    parent          id of the version that this one was trained from, or empty
    dataset_sha256  hash of the data set that it was trained on, or empty
    note            free text
    hub             USER/REPOSITORY@COMMIT of the Hugging Face hub, or empty
    sources         http(s) addresses and paths of stores that have this version
    """

    format_version: Literal[1]
    id: Annotated[str, _form(ID.pattern, ID_TEXT)]
    policy_kind: Annotated[str, _form('[a-z][a-z0-9_]{0,31}', '1 to 32 of a-z, 0-9 and _')]
    created: Annotated[str, rule(_is_time, 'a UTC time such as 2026-11-26T18:30:00Z')]
    files: Annotated[
        tuple[ManifestFile, ...],
        rule(
            _are_ordered,
            f'a list of 1 to {FILE_LIMIT} files with different paths, in their order, none below '
            'another file',
            min_length=1,
            max_length=FILE_LIMIT,
        ),
    ]
    parent: Annotated[str, _form(f'|{ID.pattern}', f'empty, or {ID_TEXT}')]
    dataset_sha256: Annotated[str, _form(f'|{SHA256.pattern}', 'empty, or 64 hexadecimal digits')]
    note: Annotated[
        str,
        rule(
            str.isprintable,
            f'one line of at most {NOTE_LIMIT} printable characters',
            max_length=NOTE_LIMIT,
        ),
    ]
    hub: Annotated[
        str,
        _form(
            r'|[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9_.-]+@[0-9a-f]{40}',
            'empty, or USER/REPOSITORY@COMMIT',
        ),
    ]
    sources: Annotated[
        tuple[
            Annotated[
                str,
                rule(
                    str.isprintable,
                    'http://..., https://... or a full path',
                    pattern=rf'^{SOURCE.pattern}\Z',
                    max_length=SOURCE_LENGTH,
                ),
            ],
            ...,
        ],
        Meta(max_length=SOURCE_LIMIT),
    ]

    def __post_init__(self) -> None:
        if self.parent == self.id:
            raise ValueError(f'parent must be another version than its own, got {self.parent!r}')
        if self.size_bytes > SIZE_LIMIT_BYTES:
            raise ValueError(
                f'size_bytes of all files must be at most {SIZE_LIMIT_BYTES}, got '
                f'{self.size_bytes}'
            )

    @property
    def name(self) -> str:
        return self.id.partition('@')[0]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def file(self, path: str) -> ManifestFile | None:
        """Return the file of a path; None for any other path."""
        return next((each for each in self.files if each.path == path), None)

    def encoded(self) -> bytes:
        """Return the content of the manifest file; equal manifests give equal bytes."""
        values = msgspec.to_builtins(self)
        return (json.dumps(values, indent=1, ensure_ascii=False) + '\n').encode()


def checked_manifest(values: Any, where: str) -> Manifest:
    """Return the manifest of plain values. Raises ManifestError."""
    try:
        load(FormatVersion, values, where)
        return load(Manifest, values, where)
    except Refused as refused:
        raise ManifestError(f'{refused}; publish or fetch the version again') from None


def parsed_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest; `where` names its origin in errors. Raises ManifestError."""
    try:
        if len(data) > MANIFEST_LIMIT_BYTES:
            raise ValueError(f'larger than {MANIFEST_LIMIT_BYTES} bytes')
        values = from_json(data)
    except ValueError as error:
        raise ManifestError(f'{where}: {error}; publish or fetch the version again') from None
    return checked_manifest(values, where)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in the folder of a version. Raises ManifestError."""
    file = folder / MANIFEST_FILE
    try:
        data = read(file, MANIFEST_LIMIT_BYTES, os.O_NOFOLLOW)
    except ValueError as error:
        raise ManifestError(
            f'{file}: {error}; give the folder of a version, or publish or fetch it again'
        ) from None
    return parsed_manifest(data, str(file))


FIELDS = ('policy_kind', 'created', 'parent', 'dataset_sha256', 'note', 'hub')


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field with the values of both manifests."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that is in one version alone, or in both with other content."""

    path: str
    first: ManifestFile | None
    second: ManifestFile | None

    @property
    def is_changed(self) -> bool:
        return self.first is not None and self.second is not None


@dataclass(frozen=True, slots=True)
class Differences:
    """`same_files` is a count; `is_parent`: one version is the parent of the other."""

    fields: tuple[FieldDifference, ...]
    files: tuple[FileDifference, ...]
    same_files: int
    is_parent: bool


def differences(first: Manifest, second: Manifest) -> Differences:
    """Return what differs."""
    firsts = {each.path: each for each in first.files}
    seconds = {each.path: each for each in second.files}
    files = tuple(
        FileDifference(path, firsts.get(path), seconds.get(path))
        for path in sorted(firsts.keys() | seconds.keys())
        if firsts.get(path) != seconds.get(path)
    )
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in FIELDS)
    return Differences(
        tuple(FieldDifference(name, one, other) for name, one, other in pairs if one != other),
        files,
        len(firsts.keys() & seconds.keys()) - sum(each.is_changed for each in files),
        first.parent == second.id or second.parent == first.id,
    )
