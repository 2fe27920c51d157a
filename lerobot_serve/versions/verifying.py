# SPDX-License-Identifier: Apache-2.0
"""
Compare the files of a version with its manifest. Any thread; the caller holds the version.
"""

from __future__ import annotations

import os
from pathlib import Path

from lerobot_serve.versions.errors import DamagedVersion, ManifestError
from lerobot_serve.versions.file_hash import CountBytes, hash_of, ignore_bytes
from lerobot_serve.versions.layout import VersionLock
from lerobot_serve.versions.manifest import Manifest, MANIFEST_FILE, ManifestFile, read_manifest

SHOWN_FAULTS = 3


def is_version(folder: Path) -> bool:
    """Return whether a folder has a manifest, also a damaged one."""
    return os.path.lexists(folder / MANIFEST_FILE)


def lock_checked(folder: Path) -> VersionLock:
    """Lock a version and compare each file. Raises DamagedVersion, VersionInUse."""
    lock = VersionLock(folder)
    try:
        check(folder)
    except BaseException:
        lock.release()
        raise
    return lock


def check(folder: Path) -> Manifest:
    """Return the manifest of a version whose files are as it says. Raises DamagedVersion."""
    try:
        manifest = read_manifest(folder)
    except ManifestError as error:
        raise DamagedVersion(str(error)) from None
    if faults := faults_of(folder, manifest):
        more = f' and {len(faults) - SHOWN_FAULTS} more' if len(faults) > SHOWN_FAULTS else ''
        raise DamagedVersion(
            f'version {folder} is damaged: {"; ".join(faults[:SHOWN_FAULTS])}{more}. Delete it '
            f'and fetch it again: lerobot-serve versions delete {manifest.id}'
        )
    return manifest


def faults_of(folder: Path, manifest: Manifest, count: CountBytes = ignore_bytes) -> list[str]:
    """Return what differs from the manifest; sizes first, hashes only if all sizes are right."""
    faults = [text for each in manifest.files if (text := _size_fault(folder, each))]
    faults += [f'{path} is not in the manifest' for path in _others(folder, manifest)]
    if not faults:
        faults = [text for each in manifest.files if (text := _hash_fault(folder, each, count))]
    return faults


def _size_fault(folder: Path, file: ManifestFile) -> str:
    path = folder / file.path
    if any((folder / parent).is_symlink() for parent in (file.path, *_parents(file.path))):
        return f'{file.path} is a link'
    if not path.is_file():
        return f'{file.path} is missing'
    size = path.stat().st_size
    return '' if size == file.size_bytes else f'{file.path} has {size} of {file.size_bytes} bytes'


def _parents(path: str) -> list[str]:
    return [path.rsplit('/', depth)[0] for depth in range(1, path.count('/') + 1)]


def _hash_fault(folder: Path, file: ManifestFile, count: CountBytes) -> str:
    try:
        found = hash_of(folder / file.path, count).hexdigest()
    except (OSError, ValueError) as error:
        return f'{file.path} cannot be read ({error})'
    return '' if found == file.sha256 else f'{file.path} has another SHA-256 ({found[:12]}...)'


def _others(folder: Path, manifest: Manifest) -> list[str]:
    known = {MANIFEST_FILE, *(each.path for each in manifest.files)}
    known |= {parent for each in manifest.files for parent in _parents(each.path)}
    found = (path.relative_to(folder).as_posix() for path in folder.rglob('*'))
    return sorted(path for path in found if path not in known)
