# SPDX-License-Identifier: Apache-2.0
"""
The manifest of a version: what it is, where it comes from, and each file with size and SHA-256.

Immutable and checked when it is made; `manifest_parser` makes it from bytes. Any thread.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
import json
import re

from lerobot_serve.versions.errors import ManifestError

FORMAT_VERSION = 1
MANIFEST_FILE = 'version.json'
NAME_FORM, HASH_FORM = r'[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}', r'[0-9a-f]{16}'
ID = re.compile(f'({NAME_FORM})@({HASH_FORM})')
ID_TEXT = 'NAME@HASH: 1 to 64 letters, digits or ._-, then @ and 16 hexadecimal digits'
SHA256 = re.compile(r'[0-9a-f]{64}')
KIND = re.compile(r'[a-z][a-z0-9_]{0,31}')
HUB = re.compile(r'[A-Za-z0-9][\w.-]*/[\w.-]+@[0-9a-f]{40}', re.ASCII)
SOURCE = re.compile(r'(https?://|/)\S+')
TIME_FORMAT = '%Y-%m-%dT%H:%M:%SZ'
FILE_LIMIT, DEPTH_LIMIT, PATH_LIMIT, PART_LIMIT = 1000, 8, 512, 255
SIZE_LIMIT_BYTES = 1 << 44
NOTE_LIMIT, SOURCE_LIMIT, SOURCE_LENGTH = 1000, 8, 512


@dataclass(frozen=True, slots=True)
class VersionFile:
    """One file; `path` is relative to the folder of the version, with / between its parts."""

    path: str
    size_bytes: int
    sha256: str

    def __post_init__(self) -> None:
        check_path(self.path)
        if type(self.size_bytes) is not int or not 0 <= self.size_bytes <= SIZE_LIMIT_BYTES:
            raise _refused(
                f'size_bytes of {self.path}', self.size_bytes, f'0 to {SIZE_LIMIT_BYTES}'
            )
        if not _matches(SHA256, self.sha256):
            raise _refused(f'sha256 of {self.path}', self.sha256, '64 hexadecimal digits')


@dataclass(frozen=True, slots=True)
class Manifest:
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

    id: str
    policy_kind: str
    created: str
    files: tuple[VersionFile, ...]
    parent: str = ''
    dataset_sha256: str = ''
    note: str = ''
    hub: str = ''
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, form, allowed in (
            ('id', self.id, ID, ID_TEXT),
            ('policy_kind', self.policy_kind, KIND, '1 to 32 of a-z, 0-9 and _'),
            ('parent', self.parent or self.id, ID, f'empty, or {ID_TEXT}'),
            ('dataset_sha256', self.dataset_sha256 or '0' * 64, SHA256, 'empty, or 64 digits'),
            ('hub', self.hub or f'a/b@{"0" * 40}', HUB, 'empty, or USER/REPOSITORY@COMMIT'),
        ):
            if not _matches(form, value):
                raise _refused(name, value, allowed)
        if self.parent == self.id:
            raise _refused('parent', self.parent, 'another version than its own')
        _check_time(self.created)
        _check_text('note', self.note, NOTE_LIMIT)
        _check_sources(self.sources)
        _check_files(self.files)

    @property
    def name(self) -> str:
        return self.id.partition('@')[0]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def file(self, path: str) -> VersionFile | None:
        """Return the file of a path; None for any other path."""
        return next((each for each in self.files if each.path == path), None)

    def encoded(self) -> bytes:
        """Return the content of the manifest file; equal manifests give equal bytes."""
        values = {'format_version': FORMAT_VERSION, **asdict(self)}
        return (json.dumps(values, indent=1, ensure_ascii=False) + '\n').encode()


def check_path(path: object) -> None:
    """Raise ManifestError unless this is the relative path of a file below a folder."""
    allowed = (
        f'relative, at most {PATH_LIMIT} bytes and {DEPTH_LIMIT} parts between /, each part '
        f'printable, without \\ and without a leading dot; not {MANIFEST_FILE}'
    )
    # a surrogate is not printable
    if not isinstance(path, str) or not path.isprintable() or '\\' in path:
        raise _refused('path', path, allowed)
    parts = path.split('/')
    is_short = len(path.encode()) <= PATH_LIMIT and len(parts) <= DEPTH_LIMIT
    if not is_short or path == MANIFEST_FILE or not all(map(_is_part, parts)):
        raise _refused('path', path, allowed)


def _is_part(part: str) -> bool:
    return bool(part) and not part.startswith('.') and len(part.encode()) <= PART_LIMIT


def _matches(form: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and bool(form.fullmatch(value))


def _check_time(value: object) -> None:
    try:
        if isinstance(value, str):
            if datetime.strptime(value, TIME_FORMAT).strftime(TIME_FORMAT) != value:
                raise ValueError
            return
    except ValueError:
        pass
    raise _refused('created', value, 'a UTC time such as 2026-11-26T18:30:00Z')


def _check_text(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str) or not value.isprintable() or len(value) > limit:
        raise _refused(name, value, f'one line of at most {limit} printable characters')


def _check_sources(sources: tuple[str, ...]) -> None:
    if len(sources) > SOURCE_LIMIT:
        raise _refused('sources', f'{len(sources)} of them', f'at most {SOURCE_LIMIT}')
    for source in sources:
        _check_text('sources', source, SOURCE_LENGTH)
        if not SOURCE.fullmatch(source):
            raise _refused('sources', source, 'http://..., https://... or a full path')


def _check_files(files: tuple[VersionFile, ...]) -> None:
    if not 1 <= len(files) <= FILE_LIMIT:
        raise _refused('files', f'{len(files)} files', f'1 to {FILE_LIMIT}')
    paths = [each.path for each in files]
    if paths != sorted(set(paths)):
        raise _refused('files', 'other paths', 'different paths, in their order')
    known = set(paths)
    for path in paths:
        parents = {path.rsplit('/', depth)[0] for depth in range(1, path.count('/') + 1)}
        if parents & known:
            raise _refused('files', path, 'outside of a path that is a file itself')
    if (total := sum(each.size_bytes for each in files)) > SIZE_LIMIT_BYTES:
        raise _refused('size_bytes of all files', total, f'at most {SIZE_LIMIT_BYTES}')


def _refused(name: str, given: object, allowed: str) -> ManifestError:
    return ManifestError(
        f'manifest: {name} must be {allowed}, got {given!r:.80}; publish the version again'
    )
