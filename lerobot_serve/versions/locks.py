# SPDX-License-Identifier: Apache-2.0
"""
Locks of stores and versions: flock, which the kernel releases with the process. Any thread.

A store has one lock for short changes. A version in use is locked in shared mode at its manifest,
so that one who deletes it, in exclusive mode, is refused; an incoming folder is locked itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import fcntl
import os
from pathlib import Path
import time

from lerobot_serve.versions.errors import DamagedVersion, StoreError, VersionInUse
from lerobot_serve.versions.manifest import MANIFEST_FILE

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
