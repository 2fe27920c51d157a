"""
Where episodes were placed, on disk, so that a router that is killed and started again knows it.

Each episode that is placed or moved is one line, written at once: a killed process loses nothing,
a power cut the last seconds. Only that is written, not every request; so a router that was started
again may forget its episodes in another order than it would have before.

The file is written anew, beside, when it holds more than twice what is remembered, some lines with
each placement so that no request waits for all. A disk that cannot be written costs memory of the
past, never a request: it is tried again with the next placement. Plain; the dispatcher's lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
import contextlib
import errno
import fcntl
from itertools import count, islice
import os
from pathlib import Path

from lerobot_serve.router.decisions import Decision, head, NotOurs, read, to_line

# a file with fewer lines is never too long
FEW_LINES = 4096
# lines copied with each placement; more while there is no file that could be added to
COPIED_AT_ONCE, CAUGHT_UP_AT_ONCE = 8, 1024
NEW_FILE = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC


class JournalInUse(Exception):
    """Another router has the file; says which, and what to do."""


class Journal:
    """
    See the module. `failures` counts the placements at which the file could not be written.

    `load` comes first. Nothing but the constructor raises.
    """

    def __init__(self, path: Path, capacity: int, tell: Callable[[str], None]) -> None:
        """`capacity` episodes are loaded at most. Raises JournalInUse."""
        self._lock_path = path.with_name(f'{path.name}.lock')
        # where a link leads, so that the link stays when the file is replaced
        self._path = Path(os.path.realpath(path))
        self._capacity, self._tell = capacity, tell
        self._lock: int | None = None
        self._file: int | None = None
        self._copy: Copy | None = None
        self._lines = 0
        self._is_failing = False
        self.failures = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._take_lock()
        except OSError as error:
            self._fail(error)

    def load(self) -> list[tuple[str, Decision]]:
        """Return what is remembered, oldest first; what cannot be read is told."""
        placed: OrderedDict[str, Decision] = OrderedDict()
        try:
            if self._path.is_file():
                placed = self._read()
            self._begin_copy(placed)
            while self._copy:
                self._copy_some(placed)
        except OSError as error:
            self._fail(error)
        return list(placed.items())

    def add(self, episode_id: str, decided: Decision, remembered: Mapping[str, Decision]) -> None:
        """Write one decision down; `remembered` are all, this one included."""
        line = to_line(episode_id, decided)
        try:
            self._append(line)
            if self._copy:
                self._copy.meanwhile.append(line)
            elif self._file is None or self._lines > 2 * max(len(remembered), FEW_LINES):
                self._begin_copy(remembered)
            if self._copy:
                self._copy_some(remembered)
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Let others have the file."""
        self._give_up_copy()
        self._file, self._lock = closed(self._file), closed(self._lock)

    def _take_lock(self) -> None:
        """Raises JournalInUse and OSError."""
        self._lock = closed(self._lock)
        lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            if not isinstance(error, BlockingIOError):
                raise
            raise JournalInUse(
                f'{self._path} is in use by another router; give each a state_folder of its own'
            ) from None
        self._lock = lock

    def _fail(self, error: OSError) -> None:
        """Count, and tell it the first time since the file was whole."""
        self.failures += 1
        self._give_up_copy()
        if not self._is_failing:
            self._is_failing = True
            self._tell(
                f'{self._path} cannot be written ({error.strerror or error}): '
                'episodes that begin now may change their slot when the router is started again'
            )

    def _read(self) -> OrderedDict[str, Decision]:
        """Return what the file holds; one that is not ours is set aside. Raises OSError."""
        try:
            placed, damage = read(self._path, self._capacity)
        except (NotOurs, OSError) as error:
            what = str(error) if isinstance(error, NotOurs) else f'cannot be read ({error})'
            aside = free_name(self._path)
            os.rename(self._path, aside)
            self._tell(f'{self._path} {what}; it is {aside.name} now, no episode is remembered')
            return OrderedDict()
        if damage:
            self._tell(f'{self._path} was damaged: {damage}; all other lines are remembered')
        return placed

    def _append(self, line: bytes) -> None:
        """Write a line where there is a file; otherwise the next copy has it. Raises OSError."""
        if self._file is None:
            return
        try:
            if is_deleted(self._file):
                self._file = closed(self._file)
                return
            write(self._file, line)
        except OSError:
            # it may end in half a line now; a copy takes its place
            self._file = closed(self._file)
            raise
        self._lines += 1

    def _begin_copy(self, remembered: Iterable[str]) -> None:
        """Raises OSError."""
        if self._lock is None or is_deleted(self._lock):
            try:
                self._take_lock()
            except JournalInUse as error:
                raise OSError(str(error)) from error
        if self._path.exists() and not self._path.is_file():
            raise OSError(errno.EINVAL, 'it is no regular file')
        self._copy = Copy(self._path.with_name(f'{self._path.name}.new'), remembered)

    def _copy_some(self, remembered: Mapping[str, Decision]) -> None:
        """Raises OSError."""
        copy = self._copy
        limit = CAUGHT_UP_AT_ONCE if self._file is None else COPIED_AT_ONCE
        if copy.write_some(remembered, limit):
            os.replace(copy.path, self._path)
            closed(self._file)
            self._file, self._lines = copy.file, copy.lines
            # the file is whole again
            self._copy, self._is_failing = None, False

    def _give_up_copy(self) -> None:
        if self._copy:
            self._copy.discard()
            self._copy = None


class Copy:
    """The file, written anew beside the old one; its descriptor outlives it."""

    def __init__(self, path: Path, remembered: Iterable[str]) -> None:
        """Raises OSError."""
        self.path, self.lines = path, 0
        # written to the old file since the copy was begun
        self.meanwhile: list[bytes] = []
        self.file = os.open(path, NEW_FILE, 0o644)
        try:
            write(self.file, head())
        except OSError:
            self.discard()
            raise
        self._left = iter(list(remembered))

    def write_some(self, remembered: Mapping[str, Decision], limit: int) -> bool:
        """Write up to `limit` lines; return whether these were the last. Raises OSError."""
        names = list(islice(self._left, limit))
        lines = [to_line(name, remembered[name]) for name in names if name in remembered]
        is_last = len(names) < limit
        if is_last:
            lines += self.meanwhile
        write(self.file, b''.join(lines))
        self.lines += len(lines)
        return is_last

    def discard(self) -> None:
        """Leave nothing behind."""
        closed(self.file)
        with contextlib.suppress(OSError):
            os.unlink(self.path)


def write(file: int, data: bytes) -> None:
    """Raises OSError, also when only a part was written."""
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, 'only a part of a line fitted')


def is_deleted(file: int) -> bool:
    """Return whether nobody would find any more what is written there."""
    return os.fstat(file).st_nlink == 0


def closed(file: int | None) -> None:
    """Close a file that may be open; return None, to remember that."""
    if file is not None:
        with contextlib.suppress(OSError):
            os.close(file)


def free_name(path: Path) -> Path:
    """Return the first PATH.broken-N that is not there."""
    names = (path.with_name(f'{path.name}.broken-{n}') for n in count(1))
    return next(name for name in names if not os.path.lexists(name))
