# SPDX-License-Identifier: Apache-2.0
"""Write a batch of decisions, shadow records and placements in one transaction. One thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
import json
import sqlite3
from typing import Any

from lerobot_serve.router.storage.content import (
    DecisionKey,
    EpisodeRow,
    StoreContent,
    StoredPlacement,
)
from lerobot_serve.router.storage.schema import digest, seal

# what begins an episode; all others end one
BEGUN = 'begun'
# episode, slot, split, moved, reason, digest
PlacementRow = tuple[str, str, int | None, int, str, bytes]


@dataclass(slots=True)
class Batch:
    """
    Rows to write in one transaction; None deletes a row. `episodes` have their numbers.

    For a store that routers share: `canary_base`, the revision of the rollout that its decisions
    build on, and `of_rollout`, the keys that go with it; `bases`, the revisions that late
    decisions build on. The store removes what is written.
    """

    decisions: dict[DecisionKey, Any] = field(default_factory=dict)
    shadow: dict[str, Any] = field(default_factory=dict)
    placements: dict[str, StoredPlacement | None] = field(default_factory=dict)
    episodes: list[tuple[int, EpisodeRow]] = field(default_factory=list)
    canary_base: int = 0
    of_rollout: set[DecisionKey] = field(default_factory=set)
    bases: dict[DecisionKey, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.decisions or self.shadow or self.placements or self.episodes)

    @property
    def must_be_on_disk(self) -> bool:
        """Whether a power cut may take nothing of it: a decision, or the end of an episode."""
        return bool(self.decisions) or any(what != BEGUN for _, (_, what, _) in self.episodes)


def full_batch(content: StoreContent) -> Batch:
    """Return the whole content of a store as a batch."""
    return Batch(
        dict(content.decisions),
        dict(content.shadow),
        dict(content.placements),
        list(content.episodes),
    )


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block as one transaction. Raises sqlite3.Error."""
    connection.execute('BEGIN IMMEDIATE')
    try:
        yield
        connection.execute('COMMIT')
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute('ROLLBACK')
        raise


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Write a batch within a transaction. Raises sqlite3.Error and ValueError."""
    _write_decisions(connection, batch.decisions)
    for policy, record in batch.shadow.items():
        if record is None:
            connection.execute('DELETE FROM shadow WHERE policy = ?', (policy,))
            continue
        text = to_json_line(record)
        row = policy, text, digest(policy, text)
        connection.execute('INSERT OR REPLACE INTO shadow VALUES (?, ?, ?)', row)
    gone = [(episode,) for episode, decided in batch.placements.items() if decided is None]
    connection.executemany('DELETE FROM placements WHERE episode = ?', gone)
    connection.executemany(
        'INSERT OR REPLACE INTO placements VALUES (NULL, ?, ?, ?, ?, ?, ?)',
        # a generator: other threads may run between two rows
        (_placement(episode, d) for episode, d in batch.placements.items() if d is not None),
    )
    connection.executemany(
        'INSERT OR REPLACE INTO episodes VALUES (?, ?, ?, ?, ?)',
        (_episode(number, *row) for number, row in batch.episodes),
    )


def _write_decisions(connection: sqlite3.Connection, decisions: Mapping[DecisionKey, Any]) -> None:
    if not decisions:
        return
    for (kind, name), value in decisions.items():
        if value is None:
            connection.execute('DELETE FROM decisions WHERE kind = ? AND name = ?', (kind, name))
            continue
        text = to_json_line(value)
        row = kind, name, text, digest(kind, name, text)
        connection.execute('INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?)', row)
    rows = connection.execute('SELECT kind, name, digest FROM decisions').fetchall()
    connection.execute('INSERT OR REPLACE INTO seal VALUES (1, ?)', (seal(rows),))


def _placement(episode: str, decided: StoredPlacement) -> PlacementRow:
    # replace characters that UTF-8 cannot encode
    reason = decided.reason.encode(errors='replace').decode()
    row = episode, decided.slot, decided.split_percent, int(decided.moved), reason
    return *row, digest(*row)


def _episode(number: int, episode: str, what: str, arm: str) -> tuple[int, str, str, str, bytes]:
    row = number, episode, what, arm
    return *row, digest(*row)


def to_json_line(value: Any) -> str:
    """Return a value as one line of JSON. Raises ValueError for a non-finite number."""
    return json.dumps(value, sort_keys=True, allow_nan=False)
