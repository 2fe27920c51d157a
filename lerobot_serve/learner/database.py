# SPDX-License-Identifier: Apache-2.0
"""
Opens the file of a learner's memory and runs its transactions. One thread at a time.

A transaction is durable when it ends (synchronous FULL). A damaged file is refused, not replaced:
without it a rejected version could be built upon.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
import contextlib
from pathlib import Path
import sqlite3
from typing import Any

from lerobot_serve.errors import UserError
from lerobot_serve.files.sqlite import DISK_ERRORS, error_code, migrate, pragma, transaction

FILE = 'learner.sqlite'
BUSY_TIMEOUT_S = 5.0
# 'LrLn'
APPLICATION_ID = 0x4C724C6E

# migration n upgrades schema n to n + 1; released migrations are never changed
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE episodes (
            sha256 TEXT PRIMARY KEY, client_id TEXT NOT NULL, episode_id TEXT NOT NULL,
            outcome TEXT NOT NULL, content TEXT NOT NULL, UNIQUE (client_id, episode_id)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE places (
            sha256 TEXT NOT NULL REFERENCES episodes, host TEXT NOT NULL, path TEXT NOT NULL,
            PRIMARY KEY (sha256, host, path)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE rounds (
            number INTEGER PRIMARY KEY, attempt INTEGER NOT NULL, deaths INTEGER NOT NULL,
            parent TEXT NOT NULL, dataset_sha256 TEXT NOT NULL, trained TEXT NOT NULL,
            output TEXT NOT NULL, end TEXT NOT NULL, text TEXT NOT NULL
        )
        """,
        """
        CREATE TABLE round_episodes (
            round INTEGER NOT NULL REFERENCES rounds, sha256 TEXT NOT NULL REFERENCES episodes,
            PRIMARY KEY (round, sha256)
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE versions (
            id TEXT PRIMARY KEY, parent TEXT NOT NULL,
            round INTEGER NOT NULL UNIQUE REFERENCES rounds
        ) WITHOUT ROWID
        """,
        'CREATE TABLE rejected (digest TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID',
        'CREATE TABLE promoted (digest TEXT PRIMARY KEY) WITHOUT ROWID',
        'CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID',
    ),
)
VERSION = len(MIGRATIONS)


class MemoryRefused(UserError):
    """The file cannot be used and is not changed; the text has the reason and the remedy."""


class MemoryNotWritten(UserError):
    """A change is not kept, because the disk refused it; nothing has changed."""


class Database:
    """See the module."""

    def __init__(self, folder: Path) -> None:
        """Open or create the file. Raises MemoryRefused."""
        self.path = folder / FILE
        try:
            self._connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._refused(error) from None
        try:
            self._connection.execute('PRAGMA synchronous = FULL')
            self._connection.execute('PRAGMA foreign_keys = ON')
            self._migrate()
        except sqlite3.Error as error:
            self._connection.close()
            raise self._refused(error) from None
        except BaseException:
            self._connection.close()
            raise

    def _migrate(self) -> None:
        connection, version = self._connection, pragma(self._connection, 'user_version')
        is_empty = not connection.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]
        if not is_empty and pragma(connection, 'application_id') != APPLICATION_ID:
            raise MemoryRefused(f'{self.path} is not of a learner; set another folder')
        if version > VERSION:
            raise MemoryRefused(
                f'{self.path} is of a newer lerobot_serve (format {version}, this one knows '
                f'{VERSION}); start that one, or set another folder'
            )
        if connection.execute('PRAGMA quick_check').fetchone()[0] != 'ok':
            raise sqlite3.DatabaseError('its check failed')
        migrate(connection, MIGRATIONS, APPLICATION_ID)
        with self.transaction():
            # one that cannot be written is refused now
            pass

    def _refused(self, error: sqlite3.Error) -> MemoryRefused:
        if _is_of_disk(error):
            return MemoryRefused(
                f'{self.path} cannot be opened: {error}; make room, check the permissions, or set '
                'another folder'
            )
        return MemoryRefused(
            f'{self.path} is damaged ({error}). It holds which versions were rolled back: restore '
            'it from a backup, or move it away. Then episodes are found again in their folders, '
            'and the parameter parent must name the version to build on'
        )

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Keep all changes of the block, or none. Raises MemoryNotWritten."""
        try:
            with transaction(self._connection):
                yield
        except sqlite3.OperationalError as error:
            if _is_of_disk(error):
                raise MemoryNotWritten(
                    f'{self.path} cannot be written: {error}; make room on its disk'
                ) from None
            raise

    def change(self, statement: str, *values: object) -> int:
        """Run one statement inside a transaction; return how many rows changed."""
        return self._connection.execute(statement, values).rowcount

    def change_many(self, statement: str, rows: Iterable[tuple[object, ...]]) -> None:
        """Run one statement for each row, inside a transaction."""
        self._connection.executemany(statement, rows)

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        self._connection.close()


def _is_of_disk(error: sqlite3.Error) -> bool:
    return error_code(error) in (*DISK_ERRORS, sqlite3.SQLITE_IOERR)
