# SPDX-License-Identifier: Apache-2.0
"""Transactions, migrations and errors of a SQLite file. The thread of a connection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
import sqlite3

# errors of the disk and its permissions; any other concerns the content of the file
DISK_ERRORS = (
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
)
FIRST_BYTE = 0xFF


def error_code(error: sqlite3.Error) -> int:
    """Return the code of an error, without what extends it; 0 for one that is not of SQLite."""
    return getattr(error, 'sqlite_errorcode', 0) & FIRST_BYTE


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction. Raises sqlite3.Error."""
    connection.execute('BEGIN IMMEDIATE')
    try:
        yield
        connection.execute('COMMIT')
    except BaseException:
        # a full disk ends a transaction by itself
        with suppress(sqlite3.Error):
            connection.execute('ROLLBACK')
        raise


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return the value of a pragma. Raises sqlite3.Error."""
    return int(connection.execute(f'PRAGMA {name}').fetchone()[0])


def migrate(
    connection: sqlite3.Connection, migrations: Sequence[Sequence[str]], application_id: int
) -> None:
    """
    Let a file have the latest schema, one transaction per step: migration n upgrades schema n to
    n + 1. Raises sqlite3.Error.
    """
    version = pragma(connection, 'user_version')
    for number, statements in enumerate(migrations[version:], start=version + 1):
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f'PRAGMA user_version = {number}')
            connection.execute(f'PRAGMA application_id = {application_id}')
