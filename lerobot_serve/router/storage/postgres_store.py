# SPDX-License-Identifier: Apache-2.0
"""
Read the shared state at the start, and write batches of one router. One thread at a time.

A transaction is durable when `write` returns (synchronous_commit of the server). Rows have the
revision of their last change; the row of the rollout is refused where another router has changed
it since this one read it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import psycopg

from lerobot_serve.router.storage.address import StateAddress
from lerobot_serve.router.storage.postgres import (
    connect,
    Connection,
    lock_key,
    other_sites,
    prepare_schema,
    time_limit,
    VERSION,
    WRITES,
)
from lerobot_serve.router.storage.records import (
    Batch,
    NEWEST,
    readable_content,
    ROLLOUT,
    StoreContent,
)
from lerobot_serve.router.storage.rows import (
    clean,
    json_or_none,
    read_decisions,
    read_placements,
    to_json_line,
)
from lerobot_serve.router.storage.store import (
    DecisionConflict,
    first_line,
    Store,
    StoreAway,
    StoreRefused,
    StoreUnwritable,
)

CONFLICT = (
    'another router changed the rollout at the same moment; look at it with `lerobot-serve '
    'rollout status`, then repeat the command'
)
DECISION_COLUMNS = 'kind, name, value, revision, router'
PLACEMENT_COLUMNS = 'episode, slot, split_percent, moved, reason, split_version'
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


class PostgresStore(Store):
    """
    See the module. `router` names this run of the router, `node` the router for ever.

    `revision` is the newest that `content` has; `other_sites` are those of the database beside
    this one.
    """

    is_shared, errors = True, psycopg.Error
    _connection: Connection | None

    def __init__(
        self, address: StateAddress, router: str, node: str, capacity: int, when: str
    ) -> None:
        """Connect, create or migrate the tables, read them. Raises StoreRefused."""
        super().__init__(address.name)
        self.address, self.router, self.node = address, router, node
        self.revision = 0
        try:
            connection = self._connection = connect(address, f'{node} writes')
            prepare_schema(connection, address.schema, self.name)
            self.content = self._read(connection, capacity)
            self.other_sites = other_sites(connection, address.schema)
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
        self._fail_closed(when)

    def _read(self, connection: Connection, capacity: int) -> StoreContent:
        """Return the content at one moment, and set its revisions."""
        with connection.transaction():
            execute = connection.execute
            execute('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY')
            # millions of placements, once
            execute("SET LOCAL statement_timeout = '60s'")
            decisions = execute(f'SELECT {DECISION_COLUMNS} FROM decisions').fetchall()
            placements = execute(
                f'SELECT {PLACEMENT_COLUMNS}, revision FROM placements '
                'ORDER BY revision DESC LIMIT %s',
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
        found = (row[:-1] for row in reversed(placements))
        content.placements = OrderedDict(read_placements(found, self.damage))
        content.shadow = {policy: json_or_none(record) for policy, record in shadow}
        content.episodes = [(number, (*row,)) for number, *row in reversed(episodes)]
        revisions = [row[3] for row in decisions] + [row[-1] for row in placements]
        self.revision = max(revisions, default=0)
        return content

    def _write(self, batch: Batch) -> None:
        """Write the decisions of a batch in one transaction, then the rest in slices."""
        if self.failure:
            self._disconnect()
        if self._connection is None:
            self._connection = connect(self.address, f'{self.node} writes')
        connection = self._connection
        self._write_decisions(connection, batch)
        while batch.placements or batch.shadow or batch.episodes:
            self._write_slice(connection, batch)

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
            for key, value in batch.decisions.items():
                row = {
                    'kind': key[0],
                    'name': clean(key[1]),
                    'value': None if value is None else to_json_line(value),
                    'router': self.router,
                    'base': batch.bases.get(key, NEWEST),
                }
                if found := connection.execute(WRITE_DECISION, row).fetchone():
                    written[key] = int(found[0])
                elif key == ROLLOUT:
                    raise DecisionConflict(CONFLICT)
        self.written.update(written)
        for key in written:
            del batch.decisions[key]

    def _write_slice(self, connection: Connection, batch: Batch) -> None:
        """Write some of the other rows, so that no transaction is long, and remove them."""
        placed = dict(islice(batch.placements.items(), SLICE))
        shadow, episodes = dict(batch.shadow), batch.episodes[:SLICE]
        with self._transaction(connection), connection.cursor() as cursor:
            # of a backlog in slices, no placement before its begin: it would not count
            cursor.executemany(
                WRITE_EPISODE,
                [
                    (self.router, number, clean(episode), what, arm)
                    for number, (episode, what, arm) in episodes
                ],
            )
            cursor.executemany(
                WRITE_PLACEMENT,
                [
                    (
                        *(clean(name), p.slot, p.split_percent, p.moved, clean(p.reason)),
                        *(p.split_version, self.router),
                    )
                    for name, p in placed.items()
                    # a router forgets by itself; the leader removes the oldest for all
                    if p
                ],
            )
            cursor.executemany(
                WRITE_SHADOW,
                [
                    (clean(policy), self.node, None if record is None else to_json_line(record))
                    for policy, record in shadow.items()
                ],
            )
        for episode in placed:
            del batch.placements[episode]
        batch.shadow.clear()
        del batch.episodes[:SLICE]


def is_away(error: psycopg.Error) -> bool:
    """
    Return whether a server may be there later: one that starts, stops, is full, or is not heard
    of. One that says no, or has another key, is a mistake of the user.
    """
    text = str(error)
    says_no = any(word in text for word in REFUSALS)
    is_busy = any(word in text for word in BUSY)
    return isinstance(error, psycopg.OperationalError) and (is_busy or not says_no)
