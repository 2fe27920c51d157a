# SPDX-License-Identifier: Apache-2.0
"""
Open, check, read and write the store file. One thread at a time.

A decision and the end of an episode are durable when `write` returns (WAL, synchronous FULL; a
decision with a checkpoint). Other batches are buffered by the operating system: a killed process
loses none, a power failure those of the last seconds. The file is locked while it is open.
"""

from __future__ import annotations

from contextlib import suppress
import os
from pathlib import Path
import sqlite3

from lerobot_serve.atomic_file import replacement_of
from lerobot_serve.errors import UserError
from lerobot_serve.files.sqlite import DISK_ERRORS, error_code, migrate, pragma, transaction
from lerobot_serve.router.storage.records import (
    Batch,
    counted_until,
    ROLLOUT,
    StoreContent,
    StoreDamage,
    update_rows,
)
from lerobot_serve.router.storage.sqlite_rows import (
    APPLICATION_ID,
    MIGRATIONS,
    read,
    VERSION,
    write,
)
from lerobot_serve.router.storage.store import Store, StoreRefused

FILE = 'router.sqlite'


class _Damaged(Exception):
    """A file of which nothing can be read."""


class SqliteStore(Store):
    """See the module: the state of one router, in a file that no other one opens."""

    is_shared, errors = False, sqlite3.Error
    _connection: sqlite3.Connection | None

    def __init__(self, folder: Path, capacity: int, when: str) -> None:
        """
        Open or create the store in a folder. A damaged file is kept under another name and
        replaced. `when` is the local time for texts. Raises StoreRefused.
        """
        self.path, self._capacity = folder / FILE, capacity
        super().__init__(str(self.path))
        self._is_damaged = False
        # device and inode of the open file
        self._file: tuple[int, int] | None = None
        try:
            if self.path.exists():
                self._load(when)
            self._ensure_writable()
        except (OSError, sqlite3.Error) as error:
            self.failure = str(error)
        except BaseException:
            self.close()
            raise

    def _write(self, batch: Batch) -> None:
        connection = self._ensure_writable()
        how = 'FULL' if batch.must_be_on_disk else 'NORMAL'
        connection.execute(f'PRAGMA synchronous = {how}')
        with transaction(connection):
            write(connection, batch)
            self._forget_counted(connection, batch)
        if batch.decisions:
            # one bad byte in the log would lose decisions that are not in the main file
            with suppress(sqlite3.Error):
                connection.execute('PRAGMA wal_checkpoint(TRUNCATE)')
        self._remember(batch)
        batch.clear()

    def _forget_counted(self, connection: sqlite3.Connection, batch: Batch) -> None:
        """Remove begins and ends that are counted and of forgotten episodes."""
        last = counted_until(batch.decisions.get(ROLLOUT))
        if last:
            # two of each episode
            row = (last - 2 * self._capacity,)
            connection.execute('DELETE FROM episodes WHERE number <= ?', row)

    def _remember(self, batch: Batch) -> None:
        """Track the decisions and shadow records of the file, to rewrite a damaged file."""
        self.content.placements.clear()
        self.content.episodes.clear()
        update_rows(self.content.decisions, batch.decisions)
        update_rows(self.content.shadow, batch.shadow)

    def _load(self, when: str) -> None:
        """Read the file. Raises StoreRefused."""
        try:
            connection = self._open()
        except _Damaged as damaged:
            self.damage = StoreDamage([str(damaged)], unsealed=True)
            self.content = StoreContent(decisions={})
        else:
            self.content = read(connection, self._capacity, self.damage)
        if self.damage:
            self._is_damaged = True
            self._fail_closed(when)
            self._disconnect()

    def _open(self) -> sqlite3.Connection:
        """Open the file and return the connection. Raises StoreRefused and _Damaged."""
        try:
            if self.path.stat().st_size == 0:
                raise _Damaged(f'{self.path} is empty')
            connection = self._connection = connect(self.path)
            self._file = _identity(self.path)
            self._check_kind(connection)
            enable_wal(connection)
            return connection
        except OSError as error:
            raise StoreRefused(
                f'{self.path} cannot be read: {error}; repair its permissions'
            ) from error
        except sqlite3.Error as error:
            self._disconnect()
            if error_code(error) == sqlite3.SQLITE_BUSY:
                raise StoreRefused(
                    f'{self.path} is in use by another process; stop that one, or set another '
                    'state_folder'
                ) from None
            if error_code(error) not in DISK_ERRORS:
                raise _Damaged(f'{self.path}: {error}') from error
            return self._open_to_read(error)

    def _check_kind(self, connection: sqlite3.Connection) -> None:
        """Check application and version, and migrate. Raises StoreRefused and sqlite3.Error."""
        found = pragma(connection, 'application_id')
        if found != APPLICATION_ID:
            raise StoreRefused(
                f'{self.path} is not a store of a router (application id {found:#x}); move it, or '
                'set another state_folder'
            )
        if (version := pragma(connection, 'user_version')) > VERSION:
            raise StoreRefused(
                f'{self.path} has schema {version} of a newer lerobot_serve; this version reads '
                f'{VERSION}; run the newer version, or set another state_folder'
            )
        migrate(connection, MIGRATIONS, APPLICATION_ID)

    def _open_to_read(self, error: sqlite3.Error) -> sqlite3.Connection:
        """Open a file on a read-only disk. Raises StoreRefused."""
        uri = f'{self.path.absolute().as_uri()}?mode=ro&immutable=1'
        try:
            connection = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self._connection = connection
            connection.execute('SELECT count(*) FROM decisions').fetchone()
        except sqlite3.Error:
            self._disconnect()
            raise StoreRefused(
                f'{self.path} cannot be read: {error}; repair its permissions'
            ) from error
        self.failure = str(error)
        return connection

    def _ensure_writable(self) -> sqlite3.Connection:
        """Return the connection of a writable file. Raises OSError and sqlite3.Error."""
        if self._file not in (None, _identity(self.path)):
            # removed or replaced: the content in memory holds
            self._disconnect()
            self._is_damaged = self.path.exists()
        if self.failure:
            # read-only, or in an unknown state after a failed write
            self._disconnect()
        if self._connection:
            return self._connection
        if self._is_damaged or not self.path.exists():
            self._lock_folder()
            self._replace()
        connection = self._connection = connect(self.path)
        enable_wal(connection)
        return connection

    def _lock_folder(self) -> None:
        """
        Create the folder if needed and lock what is there: two routers could replace each other's
        file. Raises OSError, BlockingIOError with the owner of the folder.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if self.lock:
                self.lock.renew()
        except UserError as error:
            raise BlockingIOError(str(error)) from None

    def _replace(self) -> None:
        """Write a new file and replace the old one, which is kept as PATH.damaged-N."""
        with replacement_of(self.path, suffix='.new', durable=True) as new:
            new.unlink(missing_ok=True)
            connection = sqlite3.connect(new, isolation_level=None, timeout=0)
            try:
                connection.execute('PRAGMA synchronous = FULL')
                migrate(connection, MIGRATIONS, APPLICATION_ID)
                with transaction(connection):
                    write(connection, self.content.batch())
            finally:
                connection.close()
            if self.path.exists():
                aside = free_damaged_path(self.path)
                with suppress(OSError):
                    os.link(self.path, aside)
                    self.damage.texts.append(f'the damaged file is kept as {aside.name}')
            # the log of the old file must not be applied to the new one
            self.path.with_name(f'{FILE}-wal').unlink(missing_ok=True)
        self._file = _identity(self.path)
        self._is_damaged = False


def connect(path: Path) -> sqlite3.Connection:
    """Open a file and lock it exclusively. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)
    try:
        connection.execute('PRAGMA locking_mode = EXCLUSIVE')
        # the lock is taken with the first read
        connection.execute('SELECT count(*) FROM sqlite_master').fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def enable_wal(connection: sqlite3.Connection) -> None:
    """Enable the write-ahead log."""
    connection.execute('PRAGMA journal_mode = WAL')


def free_damaged_path(path: Path) -> Path:
    """Return the first PATH.damaged-N that does not exist."""
    number = 1
    while os.path.lexists(path.with_name(f'{path.name}.damaged-{number}')):
        number += 1
    return path.with_name(f'{path.name}.damaged-{number}')


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it does not exist."""
    with suppress(FileNotFoundError):
        found = path.stat()
        return found.st_dev, found.st_ino
    return None
