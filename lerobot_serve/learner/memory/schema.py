# SPDX-License-Identifier: Apache-2.0
"""The tables of a learner's memory. Plain data."""

from __future__ import annotations

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
