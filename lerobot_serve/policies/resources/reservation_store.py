# SPDX-License-Identifier: Apache-2.0
"""
Memory reservations of the policy servers of one user, by device.

Free memory does not show a policy that is being loaded: two processes that check at once both see
it free. So each process records its reservation in a shared folder before it loads. A record is a
file that its process keeps locked: the system frees the lock when the process ends, and a record
without a lock is removed. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
import fcntl
import json
import os
from pathlib import Path
import re
import stat
import tempfile

from lerobot_serve.policies.base import PolicyError

FOLDER_NAME = 'lerobot_serve'
SUFFIX, LOCK_FILE = '.held', 'guard.lock'
NOT_IN_A_NAME = re.compile(r'[^A-Za-z0-9-]+')


@dataclass(frozen=True, slots=True)
class ReservationRecord:
    """
    The reservation of one process on a device: the declared bytes and, while it `loads`, the total
    bytes needed.
    """

    pid: int
    what: str
    declared_bytes: int
    needed_bytes: int
    loads: bool


class HeldReservation:
    """A reservation of this process until `release`; see `on_loaded`."""

    def __init__(
        self, store: ReservationStore, file: Path, descriptor: int, entry: ReservationRecord
    ) -> None:
        self._store, self._file, self._descriptor, self.entry = store, file, descriptor, entry

    def on_loaded(self) -> None:
        """The memory is in use: only the declared bytes count from now on."""
        self.entry = replace(self.entry, loads=False, needed_bytes=0)
        with self._store.locked():
            self._store.write(self._descriptor, self.entry)

    def release(self) -> None:
        """Remove the reservation; idempotent."""
        if self._descriptor >= 0:
            with self._store.locked():
                self._file.unlink(missing_ok=True)
                os.close(self._descriptor)
                self._descriptor = -1


class ReservationStore:
    """The reservations on one device, by its key."""

    def __init__(self, device: str, root: Path | None = None) -> None:
        """Raise PolicyError without a folder that only this user can write to."""
        self._folder = _own_folder(root or runtime_folder())
        self._device = NOT_IN_A_NAME.sub('-', device)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder."""
        descriptor = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def add(
        self, entry: ReservationRecord, check: Callable[[list[ReservationRecord]], None]
    ) -> HeldReservation:
        """
        Add a reservation if `check`, given those of the others, does not raise; atomic.
        """
        with self.locked():
            check(self._others())
            descriptor, name = tempfile.mkstemp(SUFFIX, f'{self._device}-', self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self.write(descriptor, entry)
            except OSError as error:
                # a locked and empty record would block all other loads
                os.unlink(name)
                os.close(descriptor)
                raise PolicyError(
                    f'{name} cannot be written: {error}; make room there, and load again'
                ) from error
        return HeldReservation(self, Path(name), descriptor, entry)

    def entries(self) -> list[ReservationRecord]:
        """Return the current reservations."""
        with self.locked():
            return self._others()

    def write(self, descriptor: int, entry: ReservationRecord) -> None:
        """Write a record; the caller holds the lock."""
        data = json.dumps(asdict(entry)).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)

    def _others(self) -> list[ReservationRecord]:
        """Return the records of running processes; remove the others."""
        found = []
        for file in sorted(self._folder.glob(f'{self._device}-*{SUFFIX}')):
            descriptor = os.open(file, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(_read_record(file, os.pread(descriptor, 1 << 16, 0)))
            else:
                # its process has ended and its memory is free
                file.unlink()
            finally:
                os.close(descriptor)
        return found


def _read_record(file: Path, data: bytes) -> ReservationRecord:
    try:
        return ReservationRecord(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise PolicyError(
            f'{file}: the memory reservation of another policy server cannot be read '
            f'({error}); stop that server, which may be of another version'
        ) from error


def runtime_folder() -> Path:
    """Return the runtime folder of this user, shared by processes until the next boot."""
    given = os.environ.get('XDG_RUNTIME_DIR', '')
    if given and os.access(given, os.W_OK):
        return Path(given) / FOLDER_NAME
    return Path(tempfile.gettempdir()) / f'{FOLDER_NAME}-{os.getuid()}'


def _own_folder(folder: Path) -> Path:
    """Create the folder if needed. Raises PolicyError for one of another user."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PolicyError(
            f'cannot create the folder for memory reservations, {folder}: {error}; set '
            'XDG_RUNTIME_DIR to a folder of this user'
        ) from error
    others = stat.S_IMODE(found.st_mode) & 0o022
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others:
        raise PolicyError(
            f'{folder}, the folder for memory reservations, must be owned by this user and not '
            'writable by others; remove it, or set XDG_RUNTIME_DIR'
        )
    return folder
