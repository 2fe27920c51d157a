# SPDX-License-Identifier: Apache-2.0
"""Make a manifest from the bytes of a file or of a server; anything unexpected is refused."""

from __future__ import annotations

from collections.abc import Mapping
import dataclasses
import json
import os
from pathlib import Path
import stat
from typing import Any

from lerobot_serve.versions.errors import ManifestError
from lerobot_serve.versions.manifest import FORMAT_VERSION, Manifest, MANIFEST_FILE, VersionFile

MANIFEST_LIMIT_BYTES = 1 << 20
FIELDS = {field.name for field in dataclasses.fields(Manifest)} | {'format_version'}
FILE_FIELDS = {field.name for field in dataclasses.fields(VersionFile)}


def parsed_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest; `where` names its origin in errors. Raises ManifestError."""
    try:
        return _manifest(_json_object(data))
    except ManifestError as error:
        raise ManifestError(f'{where}: {error}') from None


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest in the folder of a version. Raises ManifestError."""
    file = folder / MANIFEST_FILE
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, 'rb') as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ManifestError(f'{file} is not a regular file; publish or fetch it again')
            data = opened.read(MANIFEST_LIMIT_BYTES + 1)
    except OSError as error:
        raise ManifestError(
            f'{file} cannot be read: {error.strerror or error}; give the folder of a version, or '
            'publish or fetch it again'
        ) from None
    return parsed_manifest(data, str(file))


def _json_object(data: bytes) -> dict[str, Any]:
    if len(data) > MANIFEST_LIMIT_BYTES:
        raise _refused(f'it has more than {MANIFEST_LIMIT_BYTES} bytes')
    try:
        value = json.loads(
            data.decode('utf-8'), object_pairs_hook=_unique, parse_constant=_no_constant
        )
    except (ValueError, RecursionError) as error:
        raise _refused(f'it is not JSON ({" ".join(str(error).split())[:100]})') from None
    if not isinstance(value, dict):
        raise _refused('it is not a JSON object')
    return value


def _manifest(values: dict[str, Any]) -> Manifest:
    # before other fields: another version of the format may have others
    version = values.get('format_version')
    if type(version) is not int or version != FORMAT_VERSION:
        raise ManifestError(
            f'manifest: format_version must be {FORMAT_VERSION}, got {version!r:.40}; use the '
            'lerobot_serve that wrote it, or publish the version again'
        )
    _check_fields('manifest', values, FIELDS)
    given = {name: value for name, value in values.items() if name != 'format_version'}
    given['files'] = tuple(_file(each) for each in _list(values, 'files'))
    given['sources'] = tuple(_list(values, 'sources'))
    return Manifest(**given)


def _file(value: object) -> VersionFile:
    if not isinstance(value, dict):
        raise _refused(f'an entry of files must be an object, got {value!r:.60}')
    _check_fields('an entry of files', value, FILE_FIELDS)
    return VersionFile(**value)


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    value = values[name]
    if not isinstance(value, list):
        raise _refused(f'{name} must be a list, got {value!r:.60}')
    return value


def _check_fields(what: str, values: Mapping[str, Any], wanted: set[str]) -> None:
    allowed = ', '.join(sorted(wanted))
    for text, names in (
        ('has the unknown', values.keys() - wanted),
        ('lacks the', wanted - values.keys()),
    ):
        if names:
            raise _refused(f'{what} {text} field {min(names)!r:.60}; the fields are {allowed}')


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError('a field is there twice')
    return values


def _no_constant(name: str) -> None:
    raise ValueError(f'{name} is not a number')


def _refused(reason: str) -> ManifestError:
    return ManifestError(f'not a manifest: {reason}; publish or fetch the version again')
