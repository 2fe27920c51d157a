# SPDX-License-Identifier: Apache-2.0
"""
Write the store in the thread `store`. Any thread queues placements, begins and ends of episodes
without waiting; a decision waits, with a time limit, until it is durable, and `when_durable` calls
back when all that was queued before is.

What is queued is written as soon as possible, in batches; a killed process loses only queued rows.
Failed writes are kept and retried. Where another router has changed the rollout in a shared store
meanwhile, only decisions that withhold a policy or a slot are written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
import threading
import time
from typing import Any

from lerobot_serve.router.storage.records import (
    Batch,
    counted_until,
    DecisionKey,
    EpisodeRow,
    NEWEST,
    ROLLOUT,
    StoredPlacement,
    update_rows,
    withholding,
)
from lerobot_serve.router.storage.store import DecisionConflict, Store

RETRY_S = 1.0
# time limit of the disk for one decision, and for what `when_durable` waits for
DECISION_LIMIT_S = 3.0
NO_RESPONSE = f'the disk did not respond within {DECISION_LIMIT_S:g} s'
# limits of queued placements and episode events; beyond it the oldest are abandoned
WAITING_LIMIT = 200_000


@dataclass(slots=True, eq=False)
class _PendingDecisions:
    """
    Decisions with a waiting caller; `error` is why they were not written, `is_conflict` whether
    another router decided first.
    """

    batch: Batch
    done: threading.Event = field(default_factory=threading.Event)
    error: str = ''
    is_conflict: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Receipt:
    """A caller of `when_durable`."""

    on_written: Callable[[str], None]
    asked_s: float


class StoreWriter:
    """See the module. Before `run` starts and after it has returned, the caller writes."""

    def __init__(
        self, store: Store, warn: Callable[[str], None], inform: Callable[[str], None]
    ) -> None:
        self.store, self._warn, self._inform = store, warn, inform
        self._lock, self._writing = threading.RLock(), threading.Lock()
        self._work = threading.Event()
        self._next, self._queue = Batch(), list[_PendingDecisions]()
        self._receipts: set[_Receipt] = set()
        self._in_work: set[DecisionKey] = set()
        self._is_running = self._is_failing = False
        # the latest decisions, including queued ones; owned by the executor thread
        self.decisions: dict[DecisionKey, Any] = dict(store.content.decisions)
        # called, in the writer's thread, when another router has decided first
        self.on_conflict: Callable[[], None] = lambda: None
        # revisions of decisions of other routers, which those of this one build on; owned by the
        # executor thread
        self.learned: dict[DecisionKey, int] = dict(store.known)
        # the latest decisions that are of this router, with the revision written before them
        self._own: dict[DecisionKey, int] = {}
        last = store.content.episodes[-1][0] if store.content.episodes else 0
        self._episode_number = max(last, counted_until(self.decisions.get(ROLLOUT)))
        self.failures = self.abandoned = self.conflicts = 0

    @property
    def text(self) -> str:
        """Why the store cannot be written now; empty when it can."""
        if not self.store.failure:
            return ''
        return f'{self.store.name} cannot be written ({self.store.failure})'

    # any thread; never waits for the disk

    def place(self, episode_id: str, decided: StoredPlacement | None) -> None:
        """Queue a placement; None deletes it."""
        if decided is None and self.store.is_shared:
            # the router that leads removes the oldest for all
            return
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

    def record_episode(self, row: EpisodeRow) -> int:
        """
        Queue the begin or end of an episode and return its number; a rollout stores up to which
        one it has counted.
        """
        with self._lock:
            self._episode_number += 1
            waiting = self._next.episodes
            waiting.append((self._episode_number, row))
            if len(waiting) > WAITING_LIMIT:
                del waiting[0]
                self.abandoned += 1
            number = self._episode_number
        self._work.set()
        return number

    def together(self) -> AbstractContextManager[object]:
        """Write what this thread queues in the block in one transaction, or nothing of it."""
        return self._lock

    def when_durable(self, on_written: Callable[[str], None]) -> None:
        """
        Call `on_written`, in the writer's thread, when all that was queued before is in the store,
        with why it is not; empty when it is.
        """
        with self._lock:
            self._receipts.add(_Receipt(on_written, time.monotonic()))
        self._work.set()
        if not self._is_running:
            self.flush()

    def expire(self) -> None:
        """Call back who has waited for DECISION_LIMIT_S. Several times per second."""
        due_s = time.monotonic() - DECISION_LIMIT_S
        with self._lock:
            overdue = [each for each in self._receipts if each.asked_s < due_s]
        self._call_back(overdue, NO_RESPONSE)

    def _call_back(self, receipts: Collection[_Receipt], error: str) -> None:
        with self._lock:
            waiting = self._receipts.intersection(receipts)
            self._receipts -= waiting
        for receipt in waiting:
            receipt.on_written(error)

    def has_unwritten(self, key: DecisionKey) -> bool:
        """Return whether a decision of this router is not in the store yet."""
        with self._lock:
            queued = any(key in waiting.batch.decisions for waiting in self._queue)
            return queued or key in self._next.decisions or key in self._in_work

    # executor

    def learn(self, key: DecisionKey, value: Any, revision: int) -> None:
        """Take over a decision of another router, which is in the store."""
        update_rows(self.decisions, {key: value})
        self.learned[key] = revision
        self._own.pop(key, None)

    def revision_of(self, key: DecisionKey) -> int:
        """
        Return the revision of the latest decision in a shared store; 0 while it is not written,
        was refused, or without one.
        """
        if key not in self._own:
            return self.learned.get(key, 0)
        written = self.store.written.get(key, 0)
        return written if written > self._own[key] else 0

    def enqueue(self, decisions: dict[DecisionKey, Any], *, in_any_case: bool = False) -> None:
        """
        Queue decisions without waiting for them. Where another router decides until they are
        written, that holds; `in_any_case` those that withhold a policy or a slot hold.
        """
        self._update_own(decisions)
        written = self.store.written
        withheld = withholding(decisions) if in_any_case else {}
        with self._lock:
            self._next.decisions.update(decisions)
            if ROLLOUT in decisions:
                self._next.of_rollout |= decisions.keys()
            for key in decisions:
                known = max(written.get(key, 0), self.learned.get(key, 0))
                self._next.bases[key] = NEWEST if key in withheld else known
        self._work.set()

    def decide(self, decisions: dict[DecisionKey, Any], *, keep: bool) -> str:
        """
        Write decisions in one transaction; return why they are not durable, empty when they are.

        After a failure, `keep` leaves them in force and retries the write; otherwise they are
        reverted. Raises DecisionConflict where another router has changed the rollout meanwhile.
        """
        before = {key: self.decisions.get(key) for key in decisions}
        self._update_own(decisions)
        bases = {ROLLOUT: self.learned.get(ROLLOUT, 0)}
        waiting = _PendingDecisions(Batch(dict(decisions), bases=bases))
        with self._lock:
            self._queue.append(waiting)
        self._work.set()
        if not self._is_running:
            self.flush()
        if not waiting.done.wait(DECISION_LIMIT_S):
            waiting.error = NO_RESPONSE
            with self._lock:
                if waiting in self._queue:
                    self._queue.remove(waiting)
        if waiting.is_conflict:
            raise DecisionConflict(waiting.error)
        if waiting.error:
            # also after a timeout, when the write may still succeed: the latest write counts
            self.enqueue(decisions if keep else before, in_any_case=keep)
        return waiting.error

    def _update_own(self, decisions: dict[DecisionKey, Any]) -> None:
        self._own.update({key: self.store.written.get(key, 0) for key in decisions})
        update_rows(self.decisions, decisions)

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
                receipts = tuple(self._receipts)
                decided = (key for each in queue for key in each.batch.decisions)
                self._in_work = {*batch.decisions, *decided}
            error = self._write(batch) if batch else ''
            if error:
                self._requeue(batch)
            for waiting in queue:
                # each by itself: where others decide, each may come too late
                error = error or self._write(waiting.batch, waiting)
                waiting.error = waiting.error or error
            self._in_work = set()
            for waiting in queue:
                waiting.done.set()
            self._call_back(receipts, error)
            return not error

    def _write(self, batch: Batch, waiting: _PendingDecisions | None = None) -> str:
        """Write a batch; return why it cannot be written now, and must be again."""
        try:
            self.store.write(batch)
        except DecisionConflict as conflict:
            self.conflicts += 1
            self.on_conflict()
            if waiting:
                waiting.error, waiting.is_conflict = str(conflict), True
            self._drop_rollout(batch)
            return self._write(batch) if batch else ''
        except OSError as error:
            return self._failed(error)
        if self._is_failing:
            self._is_failing = False
            self._inform(f'{self.store.name} is writable again')
        if batch.decisions:
            self._warn_of_dropped(batch.decisions)
            self.on_conflict()
        return ''

    def _drop_rollout(self, batch: Batch) -> None:
        """Drop what was decided from an older state of the rollout, but what withholds."""
        keys = batch.of_rollout or batch.decisions.keys()
        withheld = withholding(batch.decisions)
        dropped = {key: batch.decisions[key] for key in keys & batch.decisions.keys()}
        dropped = {key: value for key, value in dropped.items() if key not in withheld}
        batch.decisions = {k: v for k, v in batch.decisions.items() if k not in dropped}
        for key in withheld:
            # written in any case
            batch.bases.pop(key, None)
        if batch.of_rollout:
            self._warn_of_dropped(dropped)

    def _warn_of_dropped(self, decisions: Mapping[DecisionKey, Any]) -> None:
        names = ', '.join(f'{kind} {name}'.strip() for kind, name in decisions)
        self.conflicts += 1
        self._warn(
            f'decided here while the state was away, and by another router since, which holds: '
            f'{names}'
        )

    def _failed(self, error: Exception) -> str:
        self.failures += 1
        text = f'{self.store.name} cannot be written ({error})'
        if not self._is_failing:
            self._is_failing = True
            self._warn(
                f'{text}; routing continues, decisions are not durable until it can be written'
            )
        return text

    def _requeue(self, batch: Batch) -> None:
        """Queue items of a failed write again; newer items take precedence."""
        with self._lock:
            newer = self._next
            batch.decisions.update(newer.decisions)
            batch.shadow.update(newer.shadow)
            batch.placements.update(newer.placements)
            batch.episodes.extend(newer.episodes)
            batch.of_rollout |= newer.of_rollout
            batch.bases.update(newer.bases)
            self._next = batch

    def close(self) -> None:
        """Write the queued items and close the store."""
        self.flush()
        self.store.close()
