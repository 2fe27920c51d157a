# SPDX-License-Identifier: Apache-2.0
"""
The tables of the store and the digests of their rows. Pure.

SQLite has no checksums. Each row contains the digest of its content, and the `seal` the digest of
all decisions, so that changed and missing rows are detected.
"""

from __future__ import annotations

from collections.abc import Iterable
import hashlib

# 'LrSv'
APPLICATION_ID = 0x4C725376

# migration n upgrades schema n to n + 1; released migrations are never changed
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """
        CREATE TABLE decisions (
            kind TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL, digest BLOB NOT NULL,
            PRIMARY KEY (kind, name)
        ) WITHOUT ROWID
        """,
        'CREATE TABLE seal (id INTEGER PRIMARY KEY CHECK (id = 1), digest BLOB NOT NULL)',
        """
        CREATE TABLE shadow (
            policy TEXT PRIMARY KEY, record TEXT NOT NULL, digest BLOB NOT NULL
        ) WITHOUT ROWID
        """,
        """
        CREATE TABLE placements (
            number INTEGER PRIMARY KEY, episode TEXT NOT NULL UNIQUE, slot TEXT NOT NULL,
            split_percent INTEGER, moved INTEGER NOT NULL, reason TEXT NOT NULL,
            digest BLOB NOT NULL
        )
        """,
    ),
    (
        """
        CREATE TABLE episodes (
            number INTEGER PRIMARY KEY, episode TEXT NOT NULL, what TEXT NOT NULL,
            arm TEXT NOT NULL, digest BLOB NOT NULL
        )
        """,
    ),
)
VERSION = len(MIGRATIONS)
DIGEST_BYTES = 16


def digest(*fields: object) -> bytes:
    """Return the digest of a row; the length of each field is part of the digest."""
    made = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for field in fields:
        data = repr(field).encode(errors='backslashreplace')
        made.update(len(data).to_bytes(8, 'big') + data)
    return made.digest()


def seal(rows: Iterable[tuple[str, str, bytes]]) -> bytes:
    """Return the digest of all decisions: kind, name and digest of each."""
    return digest(*sorted(rows, key=repr))
