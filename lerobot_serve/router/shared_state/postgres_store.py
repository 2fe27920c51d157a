# SPDX-License-Identifier: Apache-2.0
"""
Read the shared state at the start, and write batches of one router. One thread at a time.

A transaction is durable when `write` returns (synchronous_commit of the server). Rows have the
revision of their last change; the row of the rollout is refused where another router has changed
it since this one read it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any

import psycopg

from lerobot_serve.router.shared_state.address import StateAddress
from lerobot_serve.router.shared_state.rows import (
    clean,
    DECISION_COLUMNS,
    json_or_none,
    PLACEMENT_COLUMNS,
    read_decisions,
    read_placements,
)
from lerobot_serve.router.shared_state.tables import (
    connect,
    Connection,
    enter_schema,
    lock_key,
    other_sites,
    prepare_schema,
    time_limit,
    VERSION,
    WRITES,
)
from lerobot_serve.router.storage.batch import Batch, to_json_line
from lerobot_serve.router.storage.content import (
    CANARY,
    DecisionKey,
    EpisodeRow,
    fail_closed,
    readable_content,
    StoreContent,
    StoreDamage,
    StoredPlacement,
)
from lerobot_serve.router.storage.state_store import (
    DecisionConflict,
    StoreAway,
    StoreRefused,
    StoreUnwritable,
)
from lerobot_serve.router.storage.writer import NEWEST
from lerobot_serve.state_folder import FolderLock

CONFLICT = (
    'another router changed the rollout at the same moment; look at it with `lerobot-serve '
    'rollout status`, then repeat the command'
)
WRITE_DECISION = """
    INSERT INTO decisions VALUES (%(kind)s, %(name)s, %(value)s, nextval('revisions'), %(router)s)
    ON CONFLICT (kind, name) DO UPDATE
    SET value = EXCLUDED.value, revision = EXCLUDED.revision, router = EXCLUDED.router
    WHERE decisions.router = %(router)s OR decisions.revision <= %(base)s
    RETURNING revision
"""
# the first placement of an episode holds; a move replaces it
WRITE_PLACEMENT = """
    INSERT INTO placements VALUES (%s, %s, %s, %s, %s, %s, nextval('revisions'), %s)
    ON CONFLICT (episode) DO UPDATE
    SET slot = EXCLUDED.slot, split_percent = EXCLUDED.split_percent, moved = EXCLUDED.moved,
        reason = EXCLUDED.reason, split_version = EXCLUDED.split_version,
        revision = EXCLUDED.revision, router = EXCLUDED.router
    WHERE EXCLUDED.moved
"""
WRITE_SHADOW = """
    INSERT INTO shadow VALUES (%s, %s, %s, nextval('revisions'))
    ON CONFLICT (policy, router) DO UPDATE
    SET record = EXCLUDED.record, revision = EXCLUDED.revision
"""
# a batch is written again when the answer to its first try was lost
WRITE_EPISODE = """
    INSERT INTO episodes (router, number, episode, what, arm) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (router, number) DO NOTHING
"""
# rows of one transaction
SLICE = 2000

# libpq gives no code for a connection that failed. A server that can be reached says FATAL
REFUSALS = ('FATAL', 'certificate', 'does not support SSL')
BUSY = ('starting up', 'shutting down', 'recovery', 'too many')


class PostgresStore:
    """
    See the module. `router` names this run of the router, `node` the router for ever.

    `revision` is the newest that `content` has, `canary_revision` that of the rollout in it;
    `written` has the revision of the last write of each decision, for any thread; `other_sites`
    are those of the database beside this one.
    """

    is_shared = True

    def __init__(
        self, address: StateAddress, router: str, node: str, capacity: int, when: str
    ) -> None:
        """Connect, create or migrate the tables, read them. Raises StoreRefused."""
        self.address, self.router, self.node = address, router, node
        self.failure, self.damage = '', StoreDamage()
        self.lock: FolderLock | None = None
        self.revision = self.canary_revision = 0
        self.known: dict[DecisionKey, int] = {}
        self.written: dict[DecisionKey, int] = {}
        self._connection: Connection | None = None
        try:
            self._connection = connect(address.url, f'{node} writes')
            prepare_schema(self._connection, address.schema, self.name)
            self.content = self._read(capacity)
            self.other_sites = other_sites(self._connection, address.schema)
        except psycopg.Error as error:
            self.close()
            kind = StoreAway if is_away(error) else StoreRefused
            raise kind(
                f'{self.name} cannot be read: {first_line(error)}; start or repair the server, or '
                'correct state_url'
            ) from error
        except BaseException:
            self.close()
            raise
        if self.damage:
            fail_closed(self.content, self.damage, when)

    @property
    def name(self) -> str:
        return self.address.name

    def close(self) -> None:
        """Disconnect, and release the folder."""
        self._disconnect()
        if self.lock:
            self.lock.release()

    def _disconnect(self) -> None:
        if self._connection:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _read(self, capacity: int) -> StoreContent:
        """Return the content at one moment, and set its revisions."""
        assert self._connection
        with self._connection.transaction():
            execute = self._connection.execute
            execute('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY')
            # millions of placements, once
            execute("SET LOCAL statement_timeout = '60s'")
            decisions = execute(f'SELECT {DECISION_COLUMNS} FROM decisions').fetchall()
            placements = execute(
                f'SELECT {PLACEMENT_COLUMNS} FROM placements ORDER BY revision DESC LIMIT %s',
                (capacity,),
            ).fetchall()
            shadow = execute(
                'SELECT policy, record FROM shadow WHERE router = %s AND record IS NOT NULL',
                (self.node,),
            ).fetchall()
            episodes = execute(
                'SELECT id, episode, what, arm FROM episodes ORDER BY id DESC LIMIT %s',
                (2 * capacity,),
            ).fetchall()
        rows = read_decisions(decisions, self.damage)
        self.known = {row.key: row.revision for row in rows}
        content = readable_content(self.damage)
        content.decisions |= {row.key: row.value for row in rows if row.value is not None}
        content.placements = OrderedDict(read_placements(reversed(placements), self.damage))
        content.shadow = {policy: json_or_none(record) for policy, record in shadow}
        content.episodes = [(number, (*row,)) for number, *row in reversed(episodes)]
        found = [row[3] for row in decisions] + [row[6] for row in placements]
        self.revision = max(found, default=0)
        self.canary_revision = max((r.revision for r in rows if r.key[0] == CANARY), default=0)
        return content

    def write(self, batch: Batch) -> None:
        """
        Write the decisions of a batch in one transaction, then the rest in slices; what is written
        is removed. Raises StoreUnwritable; DecisionConflict when another router has changed the
        rollout meanwhile.
        """
        try:
            connection = self._connected()
            self._write_decisions(connection, batch)
            while batch.placements or batch.shadow or batch.episodes:
                self._write_slice(connection, batch)
        except psycopg.Error as error:
            self.failure = first_line(error)
            if not isinstance(error, psycopg.OperationalError):
                # the connection is sound
                raise StoreUnwritable(self.failure) from error
            self._disconnect()
            raise StoreUnwritable(self.failure) from error
        except StoreUnwritable as error:
            self.failure = str(error)
            raise
        self.failure = ''

    def _connected(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self.address.url, f'{self.node} writes')
            with time_limit(self._connection):
                enter_schema(self._connection, self.address.schema)
        return self._connection

    @contextmanager
    def _transaction(self, connection: Connection) -> Iterator[None]:
        """Run the block as one transaction while no other router writes, and let them know."""
        with time_limit(connection), connection.transaction():
            connection.execute(
                'SELECT pg_advisory_xact_lock(%s, %s)', (WRITES, lock_key(self.address.schema))
            )
            self._check_version(connection)
            yield
            connection.execute('SELECT pg_notify(%s, %s)', (self.address.schema, self.router))

    @staticmethod
    def _check_version(connection: Connection) -> None:
        found = connection.execute('SELECT version FROM store').fetchone()
        if found != (VERSION,):
            raise StoreUnwritable(
                f'its schema is {found[0] if found else "gone"} and this router writes {VERSION}: '
                'a router of another version has migrated it; restart this one with that version'
            )

    def _write_decisions(self, connection: Connection, batch: Batch) -> None:
        """
        Write decisions and remove them from the batch; a late one stays that another router has
        changed since. Raises DecisionConflict.
        """
        if not batch.decisions:
            return
        written = {}
        with self._transaction(connection):
            for (kind, name), value in batch.decisions.items():
                is_rollout = kind == CANARY
                base = batch.canary_base if is_rollout else batch.bases.get((kind, name), NEWEST)
                row = {
                    'kind': kind,
                    'name': clean(name),
                    'value': None if value is None else to_json_line(value),
                    'router': self.router,
                    'base': base,
                }
                found = connection.execute(WRITE_DECISION, row).fetchone()
                if found is None and is_rollout:
                    raise DecisionConflict(CONFLICT)
                if found:
                    written[kind, name] = int(found[0])
        self.written.update(written)
        for key in written:
            del batch.decisions[key]

    def _write_slice(self, connection: Connection, batch: Batch) -> None:
        """Write some of the other rows, so that no transaction is long, and remove them."""
        placements = dict(islice(batch.placements.items(), SLICE))
        shadow, episodes = dict(batch.shadow), batch.episodes[:SLICE]
        with self._transaction(connection):
            self._write_rows(connection, placements, shadow, episodes)
        for episode in placements:
            del batch.placements[episode]
        batch.shadow.clear()
        del batch.episodes[:SLICE]

    def _write_rows(
        self,
        connection: Connection,
        placed_episodes: Mapping[str, StoredPlacement | None],
        records: Mapping[str, Any],
        events: Sequence[tuple[int, EpisodeRow]],
    ) -> None:
        placements = [
            (
                clean(episode),
                placed.slot,
                placed.split_percent,
                placed.moved,
                clean(placed.reason),
                placed.split_version,
                self.router,
            )
            for episode, placed in placed_episodes.items()
            # a router forgets by itself; the leader removes the oldest for all
            if placed
        ]
        shadow = [
            (clean(policy), self.node, None if record is None else to_json_line(record))
            for policy, record in records.items()
        ]
        episodes = [
            (self.router, number, clean(episode), what, arm)
            for number, (episode, what, arm) in events
        ]
        with connection.cursor() as cursor:
            for statement, rows in (
                # of a backlog in slices, no placement before its begin: it would not count
                (WRITE_EPISODE, episodes),
                (WRITE_PLACEMENT, placements),
                (WRITE_SHADOW, shadow),
            ):
                if rows:
                    cursor.executemany(statement, rows)


def first_line(error: Exception) -> str:
    """Return the first line of an error of the server or of libpq."""
    return next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)


def is_away(error: psycopg.Error) -> bool:
    """
    Return whether a server may be there later: one that starts, stops, is full, or is not heard
    of. One that says no, or has another key, is a mistake of the user.
    """
    text = str(error)
    says_no = any(word in text for word in REFUSALS)
    is_busy = any(word in text for word in BUSY)
    return isinstance(error, psycopg.OperationalError) and (is_busy or not says_no)
