# SPDX-License-Identifier: Apache-2.0
"""Read the undamaged content of a store file and record its damage. One thread."""

from __future__ import annotations

from collections.abc import Iterator
import json
import sqlite3
from typing import Any

from lerobot_serve.contract.limits import SLOTS
from lerobot_serve.router.placement.split import bucket
from lerobot_serve.router.storage.content import (
    DecisionKey,
    StoreContent,
    stored_placement,
    StoreDamage,
)
from lerobot_serve.router.storage.schema import digest, seal

# limit of reported page problems: one changed byte may cause many
PROBLEMS_LIMIT = 3
PLACEMENT = 'episode, slot, split_percent, moved, reason, digest'
EPISODE = 'number, episode, what, arm, digest'


class StoreReader:
    """Reads a file into `content` and `damage` on construction."""

    def __init__(self, connection: sqlite3.Connection, capacity: int) -> None:
        self._connection, self._capacity = connection, capacity
        self.content, self.damage = StoreContent(decisions={}), StoreDamage()
        self._check_pages()
        self.content.decisions = self._decisions()
        self._read_shadow()
        self._read_placements()
        self._read_episodes()

    def _check_pages(self) -> None:
        try:
            found = self._connection.execute('PRAGMA integrity_check(10)').fetchall()
        except sqlite3.Error as error:
            self.damage.texts.append(str(error))
            return
        problems = [str(text) for (text,) in found if text != 'ok']
        self.damage.texts += problems[:PROBLEMS_LIMIT]

    def _rows(self, table: str, columns: str, more: str = '') -> Iterator[tuple[Any, ...]]:
        """Yield the readable rows of a table."""
        try:
            yield from self._connection.execute(f'SELECT {columns} FROM {table} {more}')
        except (sqlite3.Error, UnicodeDecodeError, OverflowError) as error:
            self.damage.texts.append(f'{table}: {error}')

    def _decisions(self) -> dict[DecisionKey, Any]:
        decisions, found, damage = {}, [], self.damage
        before = len(damage.texts)
        for kind, name, value, made in self._rows('decisions', 'kind, name, value, digest'):
            found.append((kind, name, made))
            if digest(kind, name, value) == made:
                decisions[kind, name] = json.loads(value)
            else:
                damage.keys.append((str(kind), str(name)))
                damage.texts.append(f'the decision {kind} {name} was changed')
        seals = [made for (made,) in self._rows('seal', 'digest', 'WHERE id = 1')]
        if seals != [seal(found)]:
            damage.texts.append('decisions were changed or are missing')
        damage.unsealed = len(damage.texts) > before
        return decisions

    def _read_shadow(self) -> None:
        for policy, record, made in self._rows('shadow', 'policy, record, digest'):
            if digest(policy, record) == made:
                self.content.shadow[policy] = json.loads(record)
            else:
                self.damage.texts.append(f'the shadow record of {policy} was changed')

    def _read_placements(self) -> None:
        newest, skipped = self.content.placements, 0
        for *row, made in self._rows('placements', PLACEMENT, 'ORDER BY number'):
            if digest(*row) != made or row[1] not in SLOTS:
                skipped += 1
                continue
            episode, slot, split_percent, moved, reason = row
            newest[episode] = stored_placement(
                bucket(episode), slot, split_percent, bool(moved), reason
            )
        while len(newest) > self._capacity:
            newest.popitem(last=False)
        if skipped:
            self.damage.texts.append(f'{skipped} changed placements are discarded')

    def _read_episodes(self) -> None:
        tables = [name for (name,) in self._rows('sqlite_master', 'name')]
        # an older file on a disk that cannot be written has none
        rows = self._rows('episodes', EPISODE, 'ORDER BY number') if 'episodes' in tables else ()
        skipped = 0
        for *row, made in rows:
            if digest(*row) != made:
                skipped += 1
                continue
            number, episode, what, arm = row
            self.content.episodes.append((number, (episode, what, arm)))
        if skipped:
            self.damage.texts.append(f'{skipped} changed ends of episodes are discarded')
