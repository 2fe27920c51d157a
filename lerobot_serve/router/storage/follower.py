# SPDX-License-Identifier: Apache-2.0
"""
Read what other routers write to the shared state, several times per second, and hold the lock of
the router that runs the rollout. The thread `state`; the executor takes what was found.

The lock belongs to the connection: with it ends the lead. A router that leads and stands still is
disconnected by another one. Times are compared by the clock of the server only.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
import json
import math
import threading
import time
from typing import Any

import psycopg
from psycopg import sql

from lerobot_serve.router.storage.postgres import (
    connect,
    Connection,
    interrupt,
    LEADS,
    lock_key,
    time_limit,
)
from lerobot_serve.router.storage.postgres_store import (
    DECISION_COLUMNS,
    PLACEMENT_COLUMNS,
    PostgresStore,
)
from lerobot_serve.router.storage.records import EpisodeRow, StoreDamage, StoredPlacement
from lerobot_serve.router.storage.rows import (
    DecisionRow,
    Member,
    read_decisions,
    read_members,
    read_placements,
    read_shadow,
)
from lerobot_serve.router.storage.store import first_line

PERIOD_S, GAP_S, RETRY_S = 0.25, 0.02, 0.5
# a member that was not seen for MEMBER_S is away; one that leads and stands still for STUCK_S
# loses the lead
MEMBER_S, STUCK_S = 3.0, 5.0
# without news for this long the state counts as away
AWAY_S = 2.0
# an executor that has not shown its view for this long runs no rollout
IDLE_S = 2.0
PRUNE_PERIOD_S, PRUNED_AT_ONCE, KEPT_HOURS = 10.0, 2000, 24
# of one round: the next one continues
EPISODES_LIMIT, PLACEMENTS_LIMIT = 10_000, 20_000
CHANGES_LIMIT = 64


@dataclass(slots=True)
class Changes:
    """
    What a look at the shared state found. `is_whole`: `decisions` are all there are. `episodes`
    are those after the revision `episodes_after`, with their own.
    """

    decisions: list[DecisionRow] = field(default_factory=list)
    is_whole: bool = False
    placements: list[tuple[str, StoredPlacement]] = field(default_factory=list)
    # policy, router, record or None
    shadow: list[tuple[str, str, Any]] = field(default_factory=list)
    episodes: list[tuple[int, EpisodeRow]] = field(default_factory=list)
    episodes_after: int = 0
    # None: not known, because the state cannot be reached
    members: list[Member] | None = None
    leads: bool = False
    damage: StoreDamage = field(default_factory=StoreDamage)


class StateFollower:
    """See the module. `capacity` is the number of placements that are kept."""

    def __init__(
        self,
        store: PostgresStore,
        capacity: int,
        warn: Callable[[str], None],
        inform: Callable[[str], None],
    ) -> None:
        self.store, self._address, self._capacity = store, store.address, capacity
        self._warn, self._inform = warn, inform
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        # revisions of the last decision and placement that were read
        self._decided = self._placed = store.revision
        # records of other routers in shadow are not in the content of the store
        self._compared = 0
        self._leads = self._is_away = self._is_ending = False
        self._pruned_s = 0.0
        # guarded by the lock
        self._found: list[Changes] = []
        self._wants_all = False
        self._report: dict[str, Any] = {}
        self._episodes_after = 0
        self._heard_s, self._put_s = time.monotonic(), -math.inf

    # the executor

    def take(self) -> list[Changes]:
        """Return what was found since the last call, in order."""
        with self._lock:
            found, self._found = self._found, []
            return found

    def put(self, report: dict[str, Any], episodes_after: int) -> None:
        """Set what other routers see of this one, and the last episode event that was counted."""
        with self._lock:
            self._report, self._episodes_after = report, episodes_after
            self._put_s = time.monotonic()

    def rest(self) -> None:
        """Show nothing and leave the lead to others, as a router does that routes nothing."""
        with self._lock:
            self._report, self._put_s = {}, -math.inf

    def read_all(self) -> None:
        """Read all decisions with the next round: those in memory may be others."""
        with self._lock:
            self._wants_all = True

    @property
    def is_away(self) -> bool:
        """Whether the state has not been heard of for AWAY_S. Any thread."""
        return time.monotonic() - self._heard_s > AWAY_S

    # the thread

    def run(self, stop: threading.Event) -> None:
        """Look at the state until `stop` is set and `wake` is called."""
        while not stop.is_set():
            if self.look():
                # many writes are one look
                stop.wait(GAP_S)
                self._await_news()
            else:
                stop.wait(RETRY_S)
        self.close()

    def look(self) -> bool:
        """Do one round, connected again if need be; return whether the state was there."""
        try:
            connection = self._connection or self._connect()
            with time_limit(connection):
                self._look(connection)
        except (psycopg.Error, OSError) as error:
            self._on_lost(error)
            return False
        return True

    def wake(self) -> None:
        """End the wait of the thread, also one for a server that does not answer. Any thread."""
        self._is_ending = True
        connection = self._connection
        if connection:
            interrupt(connection)

    def _connect(self) -> Connection:
        connection = self._connection = connect(self._address, f'{self.store.node} follows')
        with time_limit(connection):
            connection.execute(sql.SQL('LISTEN {}').format(sql.Identifier(self._address.schema)))
        with self._lock:
            # what was written while it was away, and what was not
            self._wants_all = True
        return connection

    def _await_news(self) -> None:
        """Wait for a write of another router, of this one too if it leads, or PERIOD_S."""
        connection = self._connection
        if connection is None:
            return
        try:
            self._drain_notes(connection)
        except (psycopg.Error, OSError) as error:
            self._on_lost(error)

    def _drain_notes(self, connection: Connection) -> None:
        for note in connection.notifies(timeout=PERIOD_S - GAP_S):
            if note.payload != self.store.router or self._leads:
                break
        for _ in connection.notifies(timeout=0):
            pass

    def _on_lost(self, error: Exception) -> None:
        self.close()
        if not (self._is_away or self._is_ending):
            self._is_away = True
            self._warn(
                f'{self._address.name} cannot be reached ({first_line(error)}); routing continues '
                'with the last known decisions, and no rollout advances until it is back'
            )
        if self._leads:
            self._leads = False
            self._deliver(Changes(leads=False))

    def close(self) -> None:
        """Disconnect, and give up the lead. The thread, or the caller where none runs."""
        connection, self._connection = self._connection, None
        if connection:
            with suppress(psycopg.Error):
                connection.close()

    def _look(self, connection: Connection) -> None:
        """Do one round. Raises psycopg.Error."""
        with self._lock:
            report, after = self._report, self._episodes_after
            wants_all, self._wants_all = self._wants_all, False
        changes = Changes(is_whole=wants_all, episodes_after=after)
        try:
            changes.leads = self._leads = self._settle_lead(connection)
            changes.members = self._meet(connection, report)
            self._read(connection, changes)
        except BaseException:
            with self._lock:
                self._wants_all |= wants_all
            raise
        self._deliver(changes)
        self._heard_s = time.monotonic()
        if self._is_away:
            self._is_away = False
            self._inform(f'{self._address.name} is back')
        if self._leads and time.monotonic() - self._pruned_s > PRUNE_PERIOD_S:
            self._pruned_s = time.monotonic()
            self._prune(connection, after)

    def _deliver(self, changes: Changes) -> None:
        with self._lock:
            self._found.append(changes)
            if len(self._found) > CHANGES_LIMIT:
                # an executor that stands still: everything is read again
                self._found = self._found[-1:]
                self._wants_all, self._placed, self._compared = True, 0, 0

    def _meet(self, connection: Connection, report: dict[str, Any]) -> list[Member]:
        """Show the own report, and return those of the members that are here."""
        connection.execute(
            'INSERT INTO members VALUES (%s, %s, now(), %s, pg_backend_pid(), %s) '
            'ON CONFLICT (router) DO UPDATE SET seen = EXCLUDED.seen, leads = EXCLUDED.leads, '
            'backend = EXCLUDED.backend, report = EXCLUDED.report',
            (self.store.router, self.store.node, self._leads, json.dumps(report)),
        )
        # an earlier run of this router, which cannot say goodbye when it is killed
        connection.execute(
            'DELETE FROM members WHERE name = %s AND NOT leads '
            "AND seen < now() - interval '1 second'",
            (self.store.node,),
        )
        rows = connection.execute(
            'SELECT router, name, report FROM members '
            'WHERE seen > now() - make_interval(secs => %s) ORDER BY router',
            (MEMBER_S,),
        )
        return read_members(rows)

    def _settle_lead(self, connection: Connection) -> bool:
        """Take the lead if it is free, keep it, or leave it to others while this one is idle."""
        with self._lock:
            is_idle = time.monotonic() - self._put_s > IDLE_S
        if self._leads and is_idle:
            connection.execute('SELECT pg_advisory_unlock_all()')
        return not is_idle and (self._leads or self._try_to_lead(connection))

    def _try_to_lead(self, connection: Connection) -> bool:
        key = (LEADS, lock_key(self._address.schema))
        found = connection.execute('SELECT pg_try_advisory_lock(%s, %s)', key).fetchone()
        if found == (True,):
            return True
        self._end_stuck_leader(connection, *key)
        return False

    def _end_stuck_leader(self, connection: Connection, kind: int, site: int) -> None:
        """End the connection that holds the lock, where its router stands still."""
        stuck = connection.execute(
            'SELECT name, backend FROM members JOIN pg_locks ON pid = backend '
            "WHERE locktype = 'advisory' AND granted AND seen < now() - make_interval(secs => %s) "
            'AND classid = %s::integer::oid AND objid = %s::integer::oid AND database = '
            '(SELECT oid FROM pg_database WHERE datname = current_database())',
            (STUCK_S, kind, site),
        ).fetchall()
        for name, backend in stuck:
            try:
                connection.execute('SELECT pg_terminate_backend(%s)', (backend,))
                self._warn(f'{name} leads the rollout and stands still: another one takes over')
            except psycopg.errors.InsufficientPrivilege:
                self._warn(
                    f'{name} leads the rollout, stands still, and is of another user: end it, or '
                    'let all routers connect as one user'
                )

    def _read(self, connection: Connection, changes: Changes) -> None:
        """Read the rows since the last round; their revisions became visible in order."""
        decisions = connection.execute(
            f'SELECT {DECISION_COLUMNS} FROM decisions WHERE revision > %s ORDER BY revision',
            (0 if changes.is_whole else self._decided,),
        ).fetchall()
        placements = connection.execute(
            f'SELECT {PLACEMENT_COLUMNS}, revision, router FROM placements WHERE revision > %s '
            'ORDER BY revision LIMIT %s',
            (self._placed, PLACEMENTS_LIMIT),
        ).fetchall()
        shadow = connection.execute(
            'SELECT policy, router, record, revision FROM shadow '
            'WHERE revision > %s AND router <> %s ORDER BY revision',
            (self._compared, self.store.node),
        ).fetchall()
        if changes.leads:
            rows = connection.execute(
                'SELECT id, episode, what, arm FROM episodes WHERE id > %s ORDER BY id LIMIT %s',
                (changes.episodes_after, EPISODES_LIMIT),
            )
            changes.episodes = [(number, (name, what, arm)) for number, name, what, arm in rows]
        changes.decisions = read_decisions(decisions, changes.damage)
        others = (row[:-2] for row in placements if row[-1] != self.store.router)
        changes.placements = list(read_placements(others, changes.damage))
        changes.shadow = read_shadow(shadow)
        self._decided = max((row[3] for row in decisions), default=self._decided)
        self._compared = max((row[3] for row in shadow), default=self._compared)
        self._placed = max((row[-2] for row in placements), default=self._placed)

    def _prune(self, connection: Connection, counted: int) -> None:
        """Remove what no router needs any more."""
        connection.execute(
            'DELETE FROM placements WHERE revision IN (SELECT revision FROM placements '
            'WHERE revision <= (SELECT revision FROM placements ORDER BY revision DESC OFFSET %s '
            'LIMIT 1) ORDER BY revision LIMIT %s)',
            (self._capacity, PRUNED_AT_ONCE),
        )
        connection.execute(
            'DELETE FROM episodes WHERE id <= %s AND written < now() - make_interval(hours => %s)',
            (counted, KEPT_HOURS),
        )
        connection.execute(
            'DELETE FROM members WHERE seen < now() - make_interval(hours => %s)', (KEPT_HOURS,)
        )
