# SPDX-License-Identifier: Apache-2.0
"""
A store of versions: lists, finds, pins and deletes them, and compares the files of a version with
its manifest.

Any thread and process: each change holds the lock of the store for a short time. Who compares
holds the version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
import os
from pathlib import Path
import shutil

from lerobot_serve.atomic_file import replacement_of, sync_folder
from lerobot_serve.versions.errors import (
    DamagedVersion,
    ManifestError,
    NoSuchVersion,
    store_error,
    VersionInUse,
    VersionKept,
)
from lerobot_serve.versions.file_hash import CountBytes, hash_of, ignore_bytes
from lerobot_serve.versions.incoming import DELETED, remove_leftovers, temporary_name
from lerobot_serve.versions.layout import exclusive, Layout, store_lock, VersionLock
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


LEAST_HASH_DIGITS = 4
SHOWN_NAMES = 5


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a store; `fault` says why a manifest cannot be read."""

    id: str
    manifest: Manifest | None
    fault: str
    pin: str | None

    @property
    def is_pinned(self) -> bool:
        return self.pin is not None


class VersionStore(Layout):
    """See the module. It keeps no state of its own."""

    __slots__ = ()

    def entries(self) -> list[StoredVersion]:
        """Return all versions, the newest last, damaged ones first. Raises StoreError."""
        found = [self._entry(version_id) for version_id in self.ids()]
        return sorted(found, key=lambda each: each.manifest.created if each.manifest else '')

    def _entry(self, version_id: str) -> StoredVersion:
        pin = self.pin_of(version_id)
        try:
            manifest = read_manifest(self.path(version_id))
        except ManifestError as error:
            return StoredVersion(version_id, None, str(error), pin)
        if manifest.id != version_id:
            return StoredVersion(version_id, None, f'its manifest is that of {manifest.id}', pin)
        return StoredVersion(version_id, manifest, '', pin)

    def entry(self, given: str) -> StoredVersion:
        """Return the version of a name; see `find_id`. Raises NoSuchVersion, StoreError."""
        return self._entry(find_id(given, self.ids(), f'store {self.folder}'))

    def pin_of(self, version_id: str) -> str | None:
        """Return why a version is pinned; None if it is not."""
        try:
            return (self.pins / version_id).read_text('utf-8', 'replace').strip()
        except OSError:
            return None

    def pin(self, version_id: str, note: str) -> None:
        """Keep a version from being deleted. Raises NoSuchVersion, StoreError."""
        file = self.pins / version_id
        try:
            with store_lock(self.lock):
                find_id(version_id, self.ids(), f'store {self.folder}')
                with replacement_of(file, durable=True) as part, open(part, 'w') as opened:
                    opened.write(f'{note}\n')
                    opened.flush()
                    os.fsync(opened.fileno())
        except OSError as error:
            raise store_error(f'{version_id} cannot be pinned', error) from None

    def unpin(self, version_id: str) -> None:
        """Remove the pin of a version, if any. Raises StoreError."""
        try:
            with store_lock(self.lock):
                (self.pins / version_id).unlink(missing_ok=True)
                sync_folder(self.pins)
        except OSError as error:
            raise store_error(f'{version_id} cannot be unpinned', error) from None

    def children(self, version_id: str) -> list[str]:
        """Return the versions whose parent this one is. Raises StoreError."""
        return [
            each.id
            for each in self.entries()
            if each.manifest and each.manifest.parent == version_id
        ]

    def delete(self, version_id: str, *, also_parent: bool = False) -> None:
        """
        Delete a version. Raises VersionKept if it is pinned or, unless `also_parent`, the parent
        of another one; VersionInUse while a process serves it; NoSuchVersion, StoreError.
        """
        removed = self.incoming / temporary_name(DELETED, version_id)
        try:
            with store_lock(self.lock):
                find_id(version_id, self.ids(), f'store {self.folder}')
                self._check_deletable(version_id, also_parent)
                self._take_out(version_id, removed)
                remove_leftovers(self, except_for=removed.name)
            shutil.rmtree(removed)
        except OSError as error:
            raise store_error(f'{version_id} cannot be deleted', error) from None

    def _check_deletable(self, version_id: str, also_parent: bool) -> None:
        if (pin := self.pin_of(version_id)) is not None:
            reason = f' ({pin})' if pin else ''
            raise VersionKept(
                f'{version_id} is pinned{reason}; `lerobot-serve versions unpin {version_id}` '
                'first'
            )
        children = self.children(version_id)
        if children and not also_parent:
            raise VersionKept(
                f'{version_id} is the parent of {_some(children)}; add --also-parent to delete it '
                'in spite of that'
            )

    def _take_out(self, version_id: str, removed: Path) -> None:
        """Rename a version that no process uses, so that it is gone at once."""
        folder = self.path(version_id)

        def in_use() -> VersionInUse:
            return VersionInUse(
                f'{version_id} is in use: a policy server serves it, or a process reads it; '
                'stop that, then delete it'
            )

        if not (folder / MANIFEST_FILE).is_file():
            # no process can hold it
            os.rename(folder, removed)
        else:
            with exclusive(folder / MANIFEST_FILE, in_use):
                os.rename(folder, removed)
        sync_folder(self.folder)


def find_id(given: str, known: Sequence[str], where: str) -> str:
    """
    Return the id that is meant: itself, the one of a name, or of the first letters of an id or
    digits of a hash. Raises NoSuchVersion for none and for several.
    """
    if given in known:
        return given
    by_name = [each for each in known if each.partition('@')[0] == given]
    by_start = [each for each in known if given and _begins(each, given)]
    for found in (by_name, by_start):
        if len(found) == 1:
            return found[0]
        if found:
            raise NoSuchVersion(f'{given!r} may be {_some(found)} of {where}; give more of the id')
    raise NoSuchVersion(f'{given!r} is not in {where}; it has {_some(known) or "no version"}')


def _begins(version_id: str, given: str) -> bool:
    digits = version_id.partition('@')[2]
    is_hash = len(given) >= LEAST_HASH_DIGITS and digits.startswith(given)
    return version_id.startswith(given) or is_hash


def _some(names: Sequence[str]) -> str:
    more = f' and {len(names) - SHOWN_NAMES} more' if len(names) > SHOWN_NAMES else ''
    return ', '.join(names[:SHOWN_NAMES]) + more
