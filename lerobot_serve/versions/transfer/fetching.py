# SPDX-License-Identifier: Apache-2.0
"""
Fetch a version into a store: its manifest, then its files, and only then its name.

Files arrive in an incoming folder that outlives a kill: the next fetch continues each file where
it ended, and asks for no byte that is there. Every hash is compared before the rename. One thread
for each fetch; a second fetch of the same version into the same store is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
import hashlib
import os
from pathlib import Path
import shutil
import time
from typing import TypeVar

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.versions.errors import FetchError, Interrupted, store_error, StoreError
from lerobot_serve.versions.file_hash import CountBytes, hash_of, ignore_bytes
from lerobot_serve.versions.incoming import (
    check_same,
    complete,
    FETCH,
    incoming_folder,
    temporary_name,
    write_manifest,
)
from lerobot_serve.versions.manifest import Manifest, MANIFEST_FILE, ManifestFile
from lerobot_serve.versions.store import find_id, VersionStore
from lerobot_serve.versions.transfer.source import VersionSource

ATTEMPTS, FIRST_WAIT_S = 5, 1.0
# an attempt that brought fewer bytes counts as failed
PROGRESS_BYTES = 1 << 20
T = TypeVar('T')
CheckFolder = Callable[[Path, Manifest], object]


class WrongHash(FetchError):
    """A whole file has another SHA-256 than its manifest names."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """`transferred_bytes` came from the source; the others were there from an earlier fetch."""

    manifest: Manifest
    is_new: bool
    transferred_bytes: int = 0


@dataclass(slots=True)
class Fetch:
    """How versions are fetched; `count` gets the bytes that are done, `sleep` waits."""

    store: VersionStore
    source: VersionSource
    check: CheckFolder = lambda folder, manifest: None
    count: CountBytes = ignore_bytes
    begin: Callable[[Manifest], None] = lambda manifest: None
    sleep: Callable[[float], None] = time.sleep
    transferred_bytes: int = 0

    def run(self, given: str) -> Fetched:
        """
        Return the version that a name means at the source. Raises VersionError, and what `check`
        raises for the whole incoming folder.
        """
        manifest = self._manifest(given)
        target = self.store.path(manifest.id)
        if target.exists():
            check_same(target, manifest)
            return Fetched(manifest, False)
        self.begin(manifest)
        # another manifest continues nothing of this one
        key = hashlib.sha256(manifest.encoded()).hexdigest()[:16]
        name = temporary_name(FETCH, manifest.id, key)
        try:
            with incoming_folder(self.store, name, keeps=True) as folder:
                return Fetched(manifest, self._fill(folder, manifest), self.transferred_bytes)
        except OSError as error:
            raise store_error(f'{manifest.id} cannot be fetched', error) from None

    def _manifest(self, given: str) -> Manifest:
        version_id = find_id(given, self._retried(self.source.ids), self.source.name)
        manifest = self._retried(lambda: self.source.manifest(version_id))
        if manifest.id != version_id:
            raise FetchError(
                f'{self.source.name} has the manifest of {manifest.id} under the name '
                f'{version_id}; publish the version there again'
            )
        return manifest

    def _fill(self, folder: Path, manifest: Manifest) -> bool:
        _remove_others(folder, manifest)
        self._check_space(folder, manifest)
        for each in manifest.files:
            (folder / each.path).parent.mkdir(parents=True, exist_ok=True)
            self._fetch_file(folder / each.path, manifest.id, each)
        write_manifest(folder, manifest)
        try:
            self.check(folder, manifest)
        except BaseException:
            # whole and wrong: nothing to continue
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return complete(self.store, folder, manifest)

    def _check_space(self, folder: Path, manifest: Manifest) -> None:
        there = sum(path.stat().st_size for path in folder.rglob('*') if path.is_file())
        free_bytes = shutil.disk_usage(folder).free
        if manifest.size_bytes - there > free_bytes:
            raise StoreError(
                f'{manifest.id} needs {(manifest.size_bytes - there) / 1e9:.2f} GB more, '
                f'{self.store.folder} has {free_bytes / 1e9:.2f} GB free; make room, or '
                'name a store on another disk with --store'
            )

    def _fetch_file(self, path: Path, version_id: str, file: ManifestFile) -> None:
        had_part = path.exists()
        try:
            self._retried(lambda: self._continue(path, version_id, file))
        except WrongHash:
            path.unlink()
            if not had_part:
                raise
            # what an earlier fetch left may be damaged, such as by a power failure
            self._retried(lambda: self._continue(path, version_id, file, no_part=True))

    def _continue(
        self, path: Path, version_id: str, file: ManifestFile, *, no_part: bool = False
    ) -> None:
        """Fetch the rest of a file and compare its hash. Raises FetchError, OSError."""
        digest = hash_of(path) if path.exists() else hashlib.sha256()
        start = path.stat().st_size if path.exists() else 0
        if start > file.size_bytes:
            path.unlink()
            digest, start = hashlib.sha256(), 0
        self.count(start)
        if start < file.size_bytes or not path.exists():
            digest = self._transfer(path, version_id, file, start, digest)
        if digest.hexdigest() != file.sha256:
            if no_part:
                path.unlink()
            raise WrongHash(
                f'{file.path} of {self.source.name} has the SHA-256 {digest.hexdigest()[:16]}..., '
                f'the manifest names {file.sha256[:16]}...; nothing of it is used. Check the '
                f'source: lerobot-serve versions verify {version_id}'
            )

    def _transfer(
        self, path: Path, version_id: str, file: ManifestFile, start: int, digest: hashlib._Hash
    ) -> hashlib._Hash:
        """Return the hash of the whole file, written and flushed."""
        with self.source.open(version_id, file, start) as opened:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            with os.fdopen(handle, 'wb') as written:
                if opened.start == 0:
                    self.count(-start)
                    digest = hashlib.sha256()
                written.truncate(opened.start)
                size = written.seek(opened.start)
                for block in opened.blocks:
                    size += len(block)
                    if size > file.size_bytes:
                        raise FetchError(
                            f'{self.source.name} sends more than the {file.size_bytes} bytes of '
                            f'{file.path}; it cannot be used'
                        )
                    written.write(block)
                    digest.update(block)
                    self.transferred_bytes += len(block)
                    self.count(len(block))
                written.flush()
                os.fsync(written.fileno())
        if size < file.size_bytes:
            raise Interrupted(f'{file.path} of {self.source.name} ended at {size} bytes')
        return digest

    def _retried(self, work: Callable[[], T]) -> T:
        """Return a result; after an interruption wait and try again while there is progress."""
        failed = 0
        while True:
            before = self.transferred_bytes
            try:
                return work()
            except Interrupted as error:
                failed = 0 if self.transferred_bytes - before >= PROGRESS_BYTES else failed + 1
                if failed >= ATTEMPTS:
                    raise FetchError(
                        f'{error}; {ATTEMPTS} attempts failed. What has arrived is kept: run the '
                        'command again to continue'
                    ) from None
                self.sleep(FIRST_WAIT_S * 2**failed)


def _remove_others(folder: Path, manifest: Manifest) -> None:
    """Remove what is not a file of the manifest, and links in place of one."""
    known = {each.path for each in manifest.files}
    for path in sorted(folder.rglob('*'), reverse=True):
        name = path.relative_to(folder).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if name not in known or path.is_symlink() or not path.is_file():
            path.unlink()
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    sync_folder(folder)
