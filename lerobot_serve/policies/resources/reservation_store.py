"""
What the policy servers of one user hold of each device, and what those that load are about to.

Free memory says nothing about a policy that is being loaded beside us: two that look at once both
see the room. So each process writes down what it is going to take, in a folder of its user that
all of them see, before it loads anything. An entry is a file that its process keeps locked: the
system frees the lock with the process, however that ends, and an entry without a lock is of no
more account. Any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
    What one process holds of a device: the bytes that its files declare and, while it `loads`,
    those that it may take in all.
    """

    pid: int
    what: str
    declared_bytes: int
    needed_bytes: int
    loads: bool


class HeldReservation:
    """An entry of this process, until `release`; `loaded` once free memory shows what it took."""

    def __init__(
        self, ledger: ReservationStore, file: Path, descriptor: int, entry: ReservationRecord
    ) -> None:
        self._ledger, self._file, self._descriptor, self.entry = ledger, file, descriptor, entry

    def loaded(self) -> None:
        """The memory is taken: from now on what is declared counts, and no more."""
        entry = asdict(self.entry) | {'loads': False, 'needed_bytes': 0}
        self.entry = ReservationRecord(**entry)
        with self._ledger.guarded():
            self._ledger.write(self._descriptor, self.entry)

    def release(self) -> None:
        """Hold nothing any more; a second time does nothing."""
        if self._descriptor >= 0:
            with self._ledger.guarded():
                self._file.unlink(missing_ok=True)
                os.close(self._descriptor)
                self._descriptor = -1


class ReservationStore:
    """The entries of one device, by whatever identifies that."""

    def __init__(self, device: str, root: Path | None = None) -> None:
        """Raise PolicyError when there is no folder that only this user can write to."""
        self._folder = _own_folder(root or runtime_folder())
        self._device = NOT_IN_A_NAME.sub('-', device)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Let no other process look or write meanwhile."""
        descriptor = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def hold(
        self, entry: ReservationRecord, check: Callable[[list[ReservationRecord]], None]
    ) -> HeldReservation:
        """
        Hold what `entry` says if `check`, given the entries of the others, does not raise.

        No other process comes in between.
        """
        with self.guarded():
            check(self._others())
            descriptor, name = tempfile.mkstemp(SUFFIX, f'{self._device}-', self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                self.write(descriptor, entry)
            except OSError as error:
                # one that is locked and empty would keep all others from loading
                os.unlink(name)
                os.close(descriptor)
                raise PolicyError(
                    f'{name} cannot be written: {error}; make room there, and load again'
                ) from error
        return HeldReservation(self, Path(name), descriptor, entry)

    def entries(self) -> list[ReservationRecord]:
        """Return what is held now."""
        with self.guarded():
            return self._others()

    def write(self, descriptor: int, entry: ReservationRecord) -> None:
        """Under the guard."""
        data = json.dumps(asdict(entry)).encode()
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, data, 0)

    def _others(self) -> list[ReservationRecord]:
        """Return the entries of processes that live; those of others are removed."""
        found = []
        for file in sorted(self._folder.glob(f'{self._device}-*{SUFFIX}')):
            descriptor = os.open(file, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(_read_record(file, os.pread(descriptor, 1 << 16, 0)))
            else:
                # its process is gone, and its memory with it
                file.unlink()
            finally:
                os.close(descriptor)
        return found


def _read_record(file: Path, data: bytes) -> ReservationRecord:
    try:
        return ReservationRecord(**json.loads(data))
    except (ValueError, TypeError) as error:
        raise PolicyError(
            f'{file}, in which another policy server says what it holds, cannot be read '
            f'({error}); end that server, which may be of another version'
        ) from error


def runtime_folder() -> Path:
    """Return the folder of this user in which processes find each other until the next boot."""
    given = os.environ.get('XDG_RUNTIME_DIR', '')
    if given and os.access(given, os.W_OK):
        return Path(given) / FOLDER_NAME
    return Path(tempfile.gettempdir()) / f'{FOLDER_NAME}-{os.getuid()}'


def _own_folder(folder: Path) -> Path:
    """Return the folder, made if it is not there. Raises PolicyError for one of somebody else."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PolicyError(
            f'{folder}, in which policy servers see what others load, cannot be made: {error}; '
            'set XDG_RUNTIME_DIR to a folder of this user'
        ) from error
    others = stat.S_IMODE(found.st_mode) & 0o022
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others:
        raise PolicyError(
            f'{folder}, in which policy servers see what the others load, must be a folder that '
            'this user owns and no other may write to; remove it, or set XDG_RUNTIME_DIR'
        )
    return folder
