# SPDX-License-Identifier: Apache-2.0
"""
The rows of the store file: its tables, and how they are read and written. One thread.

SQLite has no checksums. Each row contains the digest of its content, and the `seal` the digest of
all decisions, so that changed and missing rows are detected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
import hashlib
import json
import sqlite3
from typing import Any

from lerobot_serve.router.storage.records import (
    Batch,
    DecisionKey,
    StoreContent,
    StoreDamage,
)
from lerobot_serve.router.storage.rows import read_decisions, read_placements, to_json_line

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
# what the digest of a row is of
COLUMNS = {
    'decisions': 'kind, name, value',
    'shadow': 'policy, record',
    'placements': 'episode, slot, split_percent, moved, reason',
    'episodes': 'number, episode, what, arm',
}
NAMES = {'placements': 'placements', 'episodes': 'ends of episodes'}
# limit of reported page problems: one changed byte may cause many
PROBLEMS_LIMIT = 3


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


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Write a batch within a transaction. Raises sqlite3.Error and ValueError."""
    _write_decisions(connection, batch.decisions)
    _delete(connection, 'shadow', 'policy', batch.shadow)
    records = ((name, to_json_line(r)) for name, r in batch.shadow.items() if r is not None)
    _put(connection, 'shadow', records)
    _delete(connection, 'placements', 'episode', batch.placements)
    placements = (
        # replace characters that UTF-8 cannot encode
        (name, p.slot, p.split_percent, int(p.moved), p.reason.encode(errors='replace').decode())
        for name, p in batch.placements.items()
        if p is not None
    )
    _put(connection, 'placements', placements)
    _put(connection, 'episodes', ((number, *row) for number, row in batch.episodes))


def _write_decisions(connection: sqlite3.Connection, decisions: Mapping[DecisionKey, Any]) -> None:
    if not decisions:
        return
    gone = [key for key, value in decisions.items() if value is None]
    connection.executemany('DELETE FROM decisions WHERE kind = ? AND name = ?', gone)
    rows = ((*key, to_json_line(value)) for key, value in decisions.items() if value is not None)
    _put(connection, 'decisions', rows)
    found = connection.execute('SELECT kind, name, digest FROM decisions').fetchall()
    connection.execute('INSERT OR REPLACE INTO seal VALUES (1, ?)', (seal(found),))


def _delete(
    connection: sqlite3.Connection, table: str, column: str, rows: Mapping[str, Any]
) -> None:
    gone = [(name,) for name, value in rows.items() if value is None]
    connection.executemany(f'DELETE FROM {table} WHERE {column} = ?', gone)


def _put(connection: sqlite3.Connection, table: str, rows: Iterable[tuple[object, ...]]) -> None:
    """Write rows with their digests; from a generator other threads may run between two rows."""
    columns = COLUMNS[table]
    marks = ', '.join('?' * len(columns.split()))
    connection.executemany(
        f'INSERT OR REPLACE INTO {table} ({columns}, digest) VALUES ({marks}, ?)',
        ((*row, digest(*row)) for row in rows),
    )


class _Reader:
    """Reads a file, and adds what is not sound to `damage`."""

    def __init__(self, connection: sqlite3.Connection, damage: StoreDamage) -> None:
        self._connection, self._damage = connection, damage

    def rows(self, query: str) -> Iterator[tuple[Any, ...]]:
        """Yield the readable rows of a query."""
        try:
            yield from self._connection.execute(query)
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            self._damage.texts.append(f'{query.partition(" FROM ")[2].split()[0]}: {error}')

    def sound_rows(self, table: str, order: str = '') -> Iterator[list[Any]]:
        """Yield the unchanged rows of a table."""
        changed = 0
        for *row, made in self.rows(f'SELECT {COLUMNS[table]}, digest FROM {table} {order}'):
            if digest(*row) == made:
                yield row
            elif table == 'shadow':
                self._damage.texts.append(f'the shadow record of {row[0]} was changed')
            else:
                changed += 1
        if changed:
            self._damage.texts.append(f'{changed} changed {NAMES[table]} are discarded')

    def check_pages(self) -> None:
        try:
            found = self._connection.execute('PRAGMA integrity_check(10)').fetchall()
        except sqlite3.Error as error:
            self._damage.texts.append(str(error))
            return
        problems = [str(text) for (text,) in found if text != 'ok']
        self._damage.texts += problems[:PROBLEMS_LIMIT]

    def decisions(self) -> dict[DecisionKey, Any]:
        damage, found = self._damage, []
        sound: list[tuple[Any, ...]] = []
        before = len(damage.texts)
        for *row, made in self.rows(f'SELECT {COLUMNS["decisions"]}, digest FROM decisions'):
            kind, name, _ = row
            found.append((kind, name, made))
            if digest(*row) == made:
                sound.append((*row, 0, ''))
            else:
                damage.keys.append((str(kind), str(name)))
                damage.texts.append(f'the decision {kind} {name} was changed')
        if list(self.rows('SELECT digest FROM seal WHERE id = 1')) != [(seal(found),)]:
            damage.texts.append('decisions were changed or are missing')
        decisions = {row.key: row.value for row in read_decisions(sound, damage)}
        damage.unsealed = len(damage.texts) > before
        return decisions


def read(connection: sqlite3.Connection, capacity: int, damage: StoreDamage) -> StoreContent:
    """Return the undamaged content of a file; the rest is added to `damage`."""
    reader = _Reader(connection, damage)
    reader.check_pages()
    content = StoreContent(reader.decisions())
    content.shadow = {name: json.loads(text) for name, text in reader.sound_rows('shadow')}
    placements = ((*row, 0) for row in reader.sound_rows('placements', 'ORDER BY number'))
    for episode, placed in read_placements(placements, damage):
        content.placements[episode] = placed
        if len(content.placements) > capacity:
            content.placements.popitem(last=False)
    tables = [name for (name,) in reader.rows('SELECT name FROM sqlite_master')]
    # an older file on a disk that cannot be written has none
    if 'episodes' in tables:
        content.episodes = [
            (number, (episode, what, arm))
            for number, episode, what, arm in reader.sound_rows('episodes', 'ORDER BY number')
        ]
    return content
