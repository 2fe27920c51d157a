# SPDX-License-Identifier: Apache-2.0
"""
The tables of the shared state, and their migrations. The thread of a transition.

All writers of a site take one lock for their transaction, so that revisions become visible in
their order: a reader that has seen one has seen all before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
import hashlib
import os
import socket
import threading

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from lerobot_serve.router.storage.address import PREFIX, StateAddress
from lerobot_serve.router.storage.store import StoreRefused

Connection = psycopg.Connection[TupleRow]
APPLICATION = 'lerobot_serve router'
# migration n upgrades schema n to n + 1; released migrations are never changed
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        'CREATE SEQUENCE revisions',
        """
        CREATE TABLE decisions (
            kind text NOT NULL, name text NOT NULL, value text, revision bigint NOT NULL UNIQUE,
            router text NOT NULL, PRIMARY KEY (kind, name)
        )
        """,
        """
        CREATE TABLE shadow (
            policy text NOT NULL, router text NOT NULL, record text,
            revision bigint NOT NULL UNIQUE, PRIMARY KEY (policy, router)
        )
        """,
        """
        CREATE TABLE placements (
            episode text PRIMARY KEY, slot text NOT NULL, split_percent smallint,
            moved boolean NOT NULL, reason text NOT NULL, split_version bigint NOT NULL,
            revision bigint NOT NULL UNIQUE, router text NOT NULL
        )
        """,
        """
        CREATE TABLE episodes (
            id bigint PRIMARY KEY DEFAULT nextval('revisions'), router text NOT NULL,
            number bigint NOT NULL, episode text NOT NULL, what text NOT NULL, arm text NOT NULL,
            written timestamptz NOT NULL DEFAULT now(), UNIQUE (router, number)
        )
        """,
        """
        CREATE TABLE members (
            router text PRIMARY KEY, name text NOT NULL, seen timestamptz NOT NULL,
            leads boolean NOT NULL, backend integer NOT NULL, report text NOT NULL
        )
        """,
    ),
)
VERSION = len(MIGRATIONS)
# kinds of locks: of a transaction that writes, of the router that runs the rollout
WRITES, LEADS, MIGRATES = 1, 2, 3
CONNECT_TIMEOUT_S = 3
# beyond those of the server
ANSWER_LIMIT_S = 4.0
# a statement ends before the three seconds that a decision waits; a router that stands still in a
# transaction does not stop the others
OPTIONS = (
    '-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=3 '
    '-c statement_timeout=2500 -c idle_in_transaction_session_timeout=2500 '
    '-c client_encoding=UTF8 -c default_transaction_isolation=read\\ committed'
)


def connect(address: StateAddress, name: str) -> Connection:
    """
    Connect to the tables of a site; each statement is a transaction by itself. Of several hosts it
    is the first one that can be written: a standby can not. Raises psycopg.Error.
    """
    wanted = {'target_session_attrs': 'read-write'} | conninfo_to_dict(address.url)
    connection = psycopg.connect(
        address.url,
        target_session_attrs=str(wanted['target_session_attrs']),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        application_name=name[:63],
        options=OPTIONS,
        keepalives_idle=2,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=3000,
    )
    try:
        with time_limit(connection):
            entering = sql.SQL('SET search_path TO {}').format(sql.Identifier(address.schema))
            connection.execute(entering)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def time_limit(connection: Connection, limit_s: float = ANSWER_LIMIT_S) -> Iterator[None]:
    """
    Let the block fail with psycopg.Error when the server does not answer in time: neither libpq
    nor the kernel notices a server that stands still.
    """
    timer = threading.Timer(limit_s, interrupt, (connection,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def interrupt(connection: Connection) -> None:
    """End the wait of another thread for the server; the connection is lost. Any thread."""
    with (
        suppress(OSError, psycopg.Error),
        socket.socket(fileno=os.dup(connection.fileno())) as own,
    ):
        own.shutdown(socket.SHUT_RDWR)


def lock_key(schema: str) -> int:
    """Return the number that stands for a site in locks."""
    return int.from_bytes(hashlib.blake2b(schema.encode(), digest_size=4).digest(), 'big') >> 1


def prepare_schema(connection: Connection, schema: str, name: str) -> None:
    """
    Create or migrate the tables of a site in one transaction. Raises psycopg.Error and
    StoreRefused.
    """
    with connection.transaction():
        # by transaction: a migration that is interrupted leaves nothing
        connection.execute('SELECT pg_advisory_xact_lock(%s, %s)', (MIGRATES, lock_key(schema)))
        version = _found_version(connection, schema, name)
        if version is None:
            connection.execute(
                sql.SQL('CREATE SCHEMA IF NOT EXISTS {}').format(sql.Identifier(schema))
            )
            connection.execute(
                'CREATE TABLE store (application text NOT NULL, version integer NOT NULL)'
            )
            connection.execute('INSERT INTO store VALUES (%s, 0)', (APPLICATION,))
            version = 0
        if version > VERSION:
            raise StoreRefused(
                f'{name} has schema {version} of a newer lerobot_serve; this version reads '
                f'{VERSION}; run the newer version, or set another state_site'
            )
        for statements in MIGRATIONS[version:]:
            for statement in statements:
                connection.execute(statement.encode())
        connection.execute('UPDATE store SET version = %s', (VERSION,))


def other_sites(connection: Connection, schema: str) -> tuple[str, ...]:
    """Return the other sites of the database. Raises psycopg.Error."""
    found = connection.execute(
        'SELECT table_schema::text FROM information_schema.tables '
        "WHERE table_name = 'store' AND starts_with(table_schema, %s) AND table_schema <> %s "
        'ORDER BY 1',
        (PREFIX, schema),
    )
    return tuple(str(name).removeprefix(PREFIX) for (name,) in found)


def _found_version(connection: Connection, schema: str, name: str) -> int | None:
    """Return the version of the tables; None for a new schema. Raises StoreRefused."""
    tables = connection.execute(
        'SELECT table_name FROM information_schema.tables WHERE table_schema = %s', (schema,)
    ).fetchall()
    if not tables:
        return None
    if ('store',) in tables:
        found = connection.execute('SELECT application, version FROM store').fetchall()
        if len(found) == 1 and found[0][0] == APPLICATION:
            return int(found[0][1])
    raise StoreRefused(
        f'{name}: schema {schema} is not a store of a router; drop it, or set another state_site'
    )
