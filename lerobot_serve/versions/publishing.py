# SPDX-License-Identifier: Apache-2.0
"""
Copy the folder of a policy into a store as a version. One thread for each publication.

The fingerprints of folder and copy are computed as the policy server does (`identify`), so the id
of a version is the one that a server reports.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import msgspec

from lerobot_serve.versions.errors import PublishError, store_error
from lerobot_serve.versions.file_hash import BLOCK_BYTES, CountBytes, ignore_bytes, open_regular
from lerobot_serve.versions.incoming import (
    complete,
    incoming_folder,
    PUBLISH,
    temporary_name,
    write_manifest,
)
from lerobot_serve.versions.manifest import (
    checked_manifest,
    FILE_LIMIT,
    FORMAT_VERSION,
    ID,
    ID_TEXT,
    is_path,
    Manifest,
    MANIFEST_FILE,
    ManifestFile,
    PATH_TEXT,
)
from lerobot_serve.versions.store import VersionStore

# the cache of the Hugging Face hub: models--USER--REPOSITORY/snapshots/COMMIT, with links to blobs
SNAPSHOTS, BLOBS = 'snapshots', 'blobs'


@dataclass(frozen=True, slots=True)
class PolicyIdentity:
    """What a policy server says of a folder: its fingerprint, its kind, its place on the hub."""

    fingerprint: str
    kind: str
    hub: str = ''


@dataclass(frozen=True, slots=True)
class Details:
    """The fields of a manifest that the publisher gives; see Manifest."""

    created: str
    parent: str = ''
    dataset_sha256: str = ''
    note: str = ''
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """`is_new` is False if the store had the version; `left_out` are hidden files and folders."""

    manifest: Manifest
    is_new: bool
    left_out: tuple[str, ...]


def publish(
    store: VersionStore,
    source: Path,
    identify: Callable[[Path], PolicyIdentity],
    details: Details,
    count: CountBytes = ignore_bytes,
    *,
    follows_links: bool = False,
) -> Published:
    """
    Copy a folder, whole or not at all. `follows_links`: copy the files that links point to; else
    a link is refused, since a folder of others could publish a secret with one. Raises
    VersionError and what `identify` raises.
    """
    if os.path.lexists(source / MANIFEST_FILE):
        raise PublishError(
            f'{source} is a version already ({MANIFEST_FILE}); copy it into another store with '
            '`lerobot-serve versions fetch`'
        )
    identity = identify(source)
    if not ID.fullmatch(identity.fingerprint):
        raise PublishError(
            f'the fingerprint of {source} must be {ID_TEXT}, got {identity.fingerprint!r:.100}; '
            'give another --name'
        )
    paths, left_out = policy_paths(source)
    name = temporary_name(PUBLISH, identity.fingerprint)
    try:
        with incoming_folder(store, name) as folder:
            files = tuple(
                _copied(_opened(source, path, follows_links), folder, path, count)
                for path in paths
            )
            values = {
                **asdict(details),
                'format_version': FORMAT_VERSION,
                'id': identity.fingerprint,
                'policy_kind': identity.kind,
                'hub': identity.hub,
                'files': [msgspec.structs.asdict(each) for each in files],
                'sources': list(details.sources),
            }
            manifest = checked_manifest(values, 'manifest')
            write_manifest(folder, manifest)
            if (found := identify(folder)) != identity:
                raise PublishError(
                    f'{source} changed while it was published: its fingerprint was '
                    f'{identity.fingerprint}, that of the copy is {found.fingerprint}; publish '
                    'it when nothing writes to it'
                )
            return Published(manifest, complete(store, folder, manifest), left_out)
    except OSError as error:
        raise store_error(f'{source} cannot be published', error) from None


def policy_paths(source: Path) -> tuple[list[str], tuple[str, ...]]:
    """
    Return the relative paths of the files below a folder, and those that are left out because
    they are hidden. Raises PublishError for a name that no version may have.
    """
    found: list[str] = []
    hidden: list[str] = []
    try:
        _collect(source, '', found, hidden)
    except OSError as error:
        raise store_error(f'{source} cannot be read', error) from None
    for path in found:
        if not is_path(path):
            raise PublishError(
                f'{source}: path must be {PATH_TEXT}, got {path!r:.80}; rename it, then publish'
            )
    return sorted(found), tuple(sorted(hidden))


def _collect(source: Path, below: str, found: list[str], hidden: list[str]) -> None:
    with os.scandir(source / below) as entries:
        for entry in entries:
            path = f'{below}/{entry.name}' if below else entry.name
            if entry.name.startswith('.'):
                hidden.append(path)
            elif entry.is_dir(follow_symlinks=False):
                _collect(source, path, found, hidden)
            else:
                found.append(path)
            if len(found) > FILE_LIMIT:
                raise PublishError(
                    f'{source} holds more than {FILE_LIMIT} files; give the folder of a policy '
                    'alone'
                )


def _copied(read: BinaryIO, folder: Path, path: str, count: CountBytes) -> ManifestFile:
    """Copy an open file and flush it. Raises PublishError, OSError."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with read, open(target, 'xb') as written:
        before = os.fstat(read.fileno())
        # no more than it had at first: a file may grow for ever
        while block := read.read(min(BLOCK_BYTES, before.st_size - size)):
            written.write(block)
            digest.update(block)
            size += len(block)
            count(len(block))
        written.flush()
        os.fsync(written.fileno())
        after = os.fstat(read.fileno())
        if (size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise PublishError(
                f'{path} changed while it was read; publish it when nothing writes to it'
            )
    return ManifestFile(path=path, size_bytes=size, sha256=digest.hexdigest())


def _opened(source: Path, path: str, follows_links: bool) -> BinaryIO:
    """Open a regular file, behind a link only where that is allowed. Raises PublishError."""
    file = source / path
    if file.is_symlink():
        file = file.resolve() if follows_links else _blob_of(source, file)
    try:
        return open_regular(file)
    except ValueError:
        raise PublishError(
            f'{source / path} is not a regular file; remove it, or move it elsewhere'
        ) from None


def _blob_of(source: Path, link: Path) -> Path:
    """Return what a link of the hub's cache points to. Raises PublishError for any other link."""
    target = link.resolve()
    snapshot = Path(os.path.abspath(source))
    blobs = snapshot.parent.parent / BLOBS
    if snapshot.parent.name == SNAPSHOTS and target.parent == blobs.resolve():
        return target
    raise PublishError(
        f'{link} is a link to {target}; a version holds files alone: remove the link, or '
        'add --follow-links to copy the files behind links'
    )
