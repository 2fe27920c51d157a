# SPDX-License-Identifier: Apache-2.0
"""
Write the store in the thread `store`. Any thread queues placements without waiting; a decision
waits, with a time limit, until it is durable.

Placements are written as soon as possible, in batches; a killed process loses only queued ones.
Failed writes are kept and retried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
import sqlite3
import threading
from typing import Any

from lerobot_serve.router.storage.batch import Batch
from lerobot_serve.router.storage.content import DecisionKey, StoreContent, StoredPlacement
from lerobot_serve.router.storage.store import Store

RETRY_S = 1.0
# time limit of the disk for one decision
DECISION_LIMIT_S = 3.0
# limit of queued placements; beyond it the oldest are abandoned
WAITING_LIMIT = 200_000


@dataclass(slots=True, eq=False)
class _PendingDecisions:
    """Decisions with a waiting caller; `error` is why they were not written."""

    decisions: dict[DecisionKey, Any]
    done: threading.Event = field(default_factory=threading.Event)
    error: str = ''


class StoreWriter:
    """See the module. Before `run` starts and after it has returned, the caller writes."""

    def __init__(
        self, store: Store, warn: Callable[[str], None], inform: Callable[[str], None]
    ) -> None:
        self._store, self._warn, self._inform = store, warn, inform
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._work = threading.Event()
        self._next, self._queue = Batch(), list[_PendingDecisions]()
        self._is_running = self._is_failing = False
        # the latest decisions, including queued ones; owned by the executor thread
        self.decisions: dict[DecisionKey, Any] = dict(store.content.decisions)
        self.failures = self.abandoned = 0

    @property
    def content(self) -> StoreContent:
        return self._store.content

    @property
    def text(self) -> str:
        """Why the store cannot be written now; empty when it can."""
        if not self._store.failure:
            return ''
        return f'{self._store.path} cannot be written ({self._store.failure})'

    # any thread; never waits for the disk

    def place(self, episode_id: str, decided: StoredPlacement | None) -> None:
        """Queue a placement; None deletes it."""
        with self._lock:
            waiting = self._next.placements
            waiting.pop(episode_id, None)
            waiting[episode_id] = decided
            if len(waiting) > WAITING_LIMIT:
                del waiting[next(iter(waiting))]
                self.abandoned += 1
        self._work.set()

    def save_shadow_record(self, policy: str, record: Any) -> None:
        """Queue the shadow record of a policy; None deletes it."""
        with self._lock:
            self._next.shadow[policy] = record
        self._work.set()

    # executor

    def enqueue(self, decisions: dict[DecisionKey, Any]) -> None:
        """Queue decisions without waiting for them."""
        self._update(decisions)
        with self._lock:
            self._next.decisions.update(decisions)
        self._work.set()

    def decide(self, decisions: dict[DecisionKey, Any], *, keep: bool) -> str:
        """
        Write decisions in one transaction; return why they are not durable, empty when they are.

        After a failure, `keep` leaves them in force and retries the write; otherwise they are
        reverted.
        """
        before = {key: self.decisions.get(key) for key in decisions}
        self._update(decisions)
        waiting = _PendingDecisions(dict(decisions))
        with self._lock:
            self._queue.append(waiting)
        self._work.set()
        if not self._is_running:
            self.flush()
        if not waiting.done.wait(DECISION_LIMIT_S):
            waiting.error = f'the disk did not respond within {DECISION_LIMIT_S:g} s'
            with self._lock:
                if waiting in self._queue:
                    self._queue.remove(waiting)
        if waiting.error:
            # also after a timeout, when the write may still succeed: the latest write counts
            self.enqueue(decisions if keep else before)
        return waiting.error

    def _update(self, decisions: dict[DecisionKey, Any]) -> None:
        self.decisions.update(decisions)
        for key in [key for key, value in decisions.items() if value is None]:
            del self.decisions[key]

    # the writer's thread

    def run(self, stop: threading.Event) -> None:
        """Write queued items until `stop` is set and `wake` is called, then the rest."""
        self._is_running = True
        try:
            while not stop.is_set():
                self._work.wait()
                self._work.clear()
                if not self.flush():
                    stop.wait(RETRY_S)
                    self._work.set()
        finally:
            self._is_running = False
            self.flush()

    def wake(self) -> None:
        self._work.set()

    def flush(self) -> bool:
        """Write all queued items; return whether the write succeeded."""
        with self._writing:
            with self._lock:
                batch, self._next = self._next, Batch()
                queue, self._queue = self._queue, []
            for waiting in queue:
                batch.decisions.update(waiting.decisions)
            error = self._write(batch) if batch else ''
            for waiting in queue:
                waiting.error = error
                waiting.done.set()
            if error:
                for waiting in queue:
                    for key in waiting.decisions:
                        batch.decisions.pop(key, None)
                self._requeue(batch)
            return not error

    def _write(self, batch: Batch) -> str:
        try:
            self._store.write(batch)
        except (OSError, sqlite3.Error) as error:
            self.failures += 1
            if not self._is_failing:
                self._is_failing = True
                self._warn(
                    f'{self._store.path} cannot be written ({error}); routing continues, '
                    'decisions are not durable until it can be written'
                )
            return f'{self._store.path} cannot be written ({error})'
        if self._is_failing:
            self._is_failing = False
            self._inform(f'{self._store.path} is writable again')
        return ''

    def _requeue(self, batch: Batch) -> None:
        """Queue items of a failed write again; newer items take precedence."""
        with self._lock:
            newer = self._next
            batch.decisions.update(newer.decisions)
            batch.shadow.update(newer.shadow)
            batch.placements.update(newer.placements)
            self._next = batch

    def close(self) -> None:
        """Write the queued items and close the store."""
        self.flush()
        self._store.close()
