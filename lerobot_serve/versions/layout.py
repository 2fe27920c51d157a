# SPDX-License-Identifier: Apache-2.0
"""
The folder of a store:

    NAME@HASH/            a version: its files and version.json, read-only
    .store/lock           locked while the store changes
    .store/pins/          a file for each pinned version, with the reason
    .store/incoming/      what is published, fetched or deleted at the moment

Any thread; nothing here locks.

Locks of stores and versions: flock, which the kernel releases with the process. Any thread.

A store has one lock for short changes. A version in use is locked in shared mode at its manifest,
so that one who deletes it, in exclusive mode, is refused; an incoming folder is locked itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
from dataclasses import dataclass
import fcntl
import os
from pathlib import Path
import time
from typing import Self

from lerobot_serve.atomic_file import sync_folder
from lerobot_serve.versions.errors import DamagedVersion, store_error, StoreError, VersionInUse
from lerobot_serve.versions.manifest import ID, MANIFEST_FILE

INNER = '.store'


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of a store."""

    folder: Path

    @property
    def lock(self) -> Path:
        return self.folder / INNER / 'lock'

    @property
    def pins(self) -> Path:
        return self.folder / INNER / 'pins'

    @property
    def incoming(self) -> Path:
        return self.folder / INNER / 'incoming'

    def path(self, version_id: str) -> Path:
        return self.folder / version_id

    def ids(self) -> list[str]:
        """Return the ids of all versions, in order. Raises StoreError."""
        try:
            return sorted(name for name in os.listdir(self.folder) if ID.fullmatch(name))
        except OSError as error:
            raise store_error(f'store {self.folder} cannot be read', error) from None

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Return an existing store. Raises StoreError for any other folder."""
        layout = cls(Path(os.path.abspath(folder)))
        if not layout.lock.is_file():
            raise StoreError(
                f'{folder} is not a store of versions; name one with --store, or make it with '
                '`lerobot-serve versions publish` or `fetch`'
            )
        return layout

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Return a store, made if the folder is new or empty. Raises StoreError."""
        layout = cls(Path(os.path.abspath(folder)))
        try:
            if layout.lock.is_file():
                return layout
            layout.folder.mkdir(parents=True, exist_ok=True)
            # of a process that makes the store at the same time, or was killed while it did
            others = [name for name in os.listdir(layout.folder) if name != INNER]
            if others and not layout.lock.is_file():
                raise StoreError(
                    f'{folder} is not a store of versions and not empty (it holds '
                    f'{min(others)!r}); give a new or empty folder'
                )
            layout.pins.mkdir(parents=True, exist_ok=True)
            layout.incoming.mkdir(exist_ok=True)
            # last, because it makes the folder a store
            os.close(os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o644))
            sync_folder(layout.lock.parent)
            sync_folder(layout.folder)
        except OSError as error:
            raise store_error(f'store {folder} cannot be made', error) from None
        return layout


WAIT_LIMIT_S, POLL_S = 30.0, 0.02


class VersionLock:
    """A version in use; `release` may be called more than once."""

    def __init__(self, folder: Path) -> None:
        """Raises DamagedVersion without a manifest, VersionInUse while it is deleted."""
        self.folder = folder
        file = folder / MANIFEST_FILE
        try:
            self._handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            raise DamagedVersion(
                f'{file} cannot be read: {error.strerror}; publish or fetch the version again'
            ) from None
        # a deletion that came between removed the file that was opened
        if not (try_lock(self._handle, fcntl.LOCK_SH) and _is_there(file, self._handle)):
            self.release()
            raise VersionInUse(f'{folder} is being deleted; use another version')

    def release(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep a version from being deleted during the block. Raises VersionError."""
    lock = VersionLock(folder)
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(path: Path, on_busy: Callable[[], Exception], wait_s: float = 0.0) -> Iterator[None]:
    """Lock a file or folder; raise `on_busy()` if another has it for `wait_s`, or OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        deadline_s = time.monotonic() + wait_s
        while not try_lock(handle, fcntl.LOCK_EX):
            if time.monotonic() >= deadline_s:
                raise on_busy()
            time.sleep(POLL_S)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def store_lock(file: Path) -> Iterator[None]:
    """Hold the lock of a store. Raises StoreError after WAIT_LIMIT_S, OSError."""

    def busy() -> StoreError:
        return StoreError(
            f'another process changes the store of {file} for {WAIT_LIMIT_S:g} s; try again when '
            'it has ended'
        )

    with exclusive(file, busy, WAIT_LIMIT_S):
        yield


def try_lock(handle: int, mode: int) -> bool:
    """Return whether the lock was free."""
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_there(file: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(file), os.fstat(handle))
    except OSError:
        return False
