# SPDX-License-Identifier: Apache-2.0
"""
Queue of the inference thread: the newest request of each client, one-shot requests and jobs.

One-shot requests share the place of one client. Jobs have priority. The thread that receives a
request may serve it itself while the inference thread has nothing to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
import threading
import time
from typing import Any, TypeVar

from msgspec import field, Struct
from msgspec.structs import replace

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.server.inference.schedulers import RoundRobin, Scheduler
from lerobot_serve.server.sessions.session_table import Session

T = TypeVar('T')
Clock = Callable[[], int]
Job = tuple[Callable[[], Any], Future[Any]]


class DecodedRequest(Struct, eq=False):
    """The decoded observation, None until the worker has decoded it; for the trace."""

    observation: Observation | None = None


class QueuedRequest(Struct, frozen=True, eq=False):
    """
    One request as it arrived. `runs_dry_ns` is when its client runs out of actions, by this
    server's clock; `on_reply` receives the reply instead of the session's reply topic. The queue
    sets `queued_ns`, when its client joined, and `superseded`; the worker sets `decoded`.
    """

    session: Session
    raw: Raw
    header: Header
    arrived_ns: int
    runs_dry_ns: int = 0
    queued_ns: int = 0
    superseded: int = 0
    on_reply: Callable[[Chunk], None] | None = None
    decoded: DecodedRequest = field(default_factory=DecodedRequest)

    def deliver(self, chunk: Chunk) -> bool:
        """Pass a reply to `on_reply`, if there is one; return False if that fails."""
        if self.on_reply is None:
            return True
        try:
            self.on_reply(chunk)
        except Exception:
            # an error of a link, whose caller may have gone, must not end the calling thread
            return False
        return True


# not a valid session id
ONE_SHOT_KEY = '\0'


class QueueClosed(Exception):
    """The inference thread has ended or is about to."""


class RequestQueue:
    """
    Any thread enqueues. The inference thread calls `take_batch`, which also marks the previous
    batch as done. `close` ends that thread. A thread that gets a request from `take_if_idle` calls
    `give_back` once it is served.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._newest: dict[str, QueuedRequest] = {}
        # one-shot requests behind the one in `_newest`
        self._one_shots: deque[QueuedRequest] = deque()
        self._superseded: dict[str, int] = {}
        self._jobs: deque[Job] = deque()
        self._scheduler: Scheduler = RoundRobin()
        self._count_clients: Callable[[], int] = lambda: 0
        # the inference thread runs a batch or a job; another thread serves a request
        self._busy = self._taken = False
        self._idle_waiters = 0
        self._closed = False

    def set_scheduler(self, scheduler: Scheduler, clients: Callable[[], int]) -> None:
        """Set the scheduler; `clients` returns the number of clients with a session."""
        with self._changed:
            self._scheduler, self._count_clients = scheduler, clients
            self._changed.notify_all()

    def put(self, queued: QueuedRequest) -> QueuedRequest | None:
        """
        Queue a request; return the older one that it supersedes.

        The newer request keeps the place of the older one, so that frequent requests have no
        advantage.
        """
        name = queued.session.session_id
        with self._changed:
            older = self._newest.get(name)
            if older:
                self._superseded[name] = self._superseded.get(name, 0) + 1
                # a robot without actions has had none since its first request
                runs_dry_ns = min(older.runs_dry_ns, queued.runs_dry_ns)
                queued = replace(queued, runs_dry_ns=runs_dry_ns, queued_ns=older.queued_ns)
            else:
                queued = replace(queued, queued_ns=queued.arrived_ns)
            self._newest[name] = queued
            self._changed.notify_all()
            return older

    def put_one_shot(self, queued: QueuedRequest, limit: int) -> bool:
        """
        Queue a one-shot request; False if `limit` of them are queued.

        Clients wait for at most one of them at a time.
        """
        with self._changed:
            if ONE_SHOT_KEY not in self._newest:
                self._newest[ONE_SHOT_KEY] = replace(queued, queued_ns=queued.arrived_ns)
            elif 1 + len(self._one_shots) >= limit:
                return False
            else:
                self._one_shots.append(queued)
            self._changed.notify_all()
            return True

    def take_if_idle(self, queued: QueuedRequest) -> QueuedRequest | None:
        """
        Return a request for the calling thread to serve instead of `put`; None if the inference
        thread has work, or if the scheduler waits for more requests.
        """
        with self._changed:
            if self._busy or self._taken or self._closed or self._jobs or self._newest:
                return None
            pick = self._scheduler.pick((queued,), self._clock(), self._count_clients())
            if not pick.positions:
                return None
            self._taken = True
            count = self._superseded.get(queued.session.session_id, 0)
            if queued.queued_ns == queued.arrived_ns and not count:
                return queued
            return replace(queued, queued_ns=queued.arrived_ns, superseded=count)

    def give_back(self) -> None:
        """End what `take_if_idle` began; the inference thread takes what came meanwhile."""
        with self._changed:
            self._taken = False
            if self._newest or self._jobs or self._closed or self._idle_waiters:
                self._changed.notify_all()

    def take_batch(self) -> list[QueuedRequest] | None:
        """
        Run the queued jobs, wait for requests and return the next batch; None once closed.
        """
        while (work := self._next_work()) is not None:
            if isinstance(work, list):
                return work
            execute_job(*work)
            # free its result before the next wait
            del work
        return None

    def _next_work(self) -> list[QueuedRequest] | Job | None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            while self._taken or not self._closed:
                if self._taken:
                    self._changed.wait()
                elif self._jobs:
                    self._busy = True
                    return self._jobs.popleft()
                elif batch := self._pick():
                    self._busy = True
                    return batch
            return None

    def _pick(self) -> list[QueuedRequest]:
        """Return the batch to serve now; if there is none, wait and return an empty list."""
        if not self._newest:
            self._changed.wait()
            return []
        line = list(self._newest.items())
        waiting = [queued for _, queued in line]
        pick = self._scheduler.pick(waiting, self._clock(), self._count_clients())
        if not pick.positions:
            self._changed.wait(pick.wait_ns / 1e9)
            return []
        return [self._remove(line[position][0]) for position in pick.positions]

    def _remove(self, name: str) -> QueuedRequest:
        queued = self._newest.pop(name)
        if name == ONE_SHOT_KEY:
            self._promote_one_shot()
        count = self._superseded.get(name, 0)
        return replace(queued, superseded=count)

    def _promote_one_shot(self) -> None:
        """Move the next one-shot request to the end of the queue, as for a client."""
        if self._one_shots:
            queued = self._one_shots.popleft()
            self._newest[ONE_SHOT_KEY] = replace(queued, queued_ns=self._clock())

    def submit_job(self, job: Callable[[], T]) -> Future[T]:
        """Queue `job` for the inference thread, before its next request."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.set_exception(QueueClosed('the server is shutting down'))
                return future
            self._jobs.append((job, future))
            self._changed.notify_all()
        return future

    def run_job(self, job: Callable[[], T], timeout_s: float | None = None) -> T:
        """
        Run `job` in the inference thread; return its result or raise its error. Raises
        TimeoutError, and cancels the job, if it has not begun in time.
        """
        future = self.submit_job(job)
        wait([future], timeout_s)
        if future.cancel():
            raise TimeoutError(f'the policy did not finish within {timeout_s:g} s')
        try:
            return future.result()
        finally:
            # the error refers to this frame, see execute_job
            del future

    def discard_session(self, session_id: str) -> QueuedRequest | None:
        """Remove the state of a closed session; return its queued request."""
        with self._changed:
            self._superseded.pop(session_id, None)
            return self._newest.pop(session_id, None)

    def withdraw_one_shot(self, key: str) -> QueuedRequest | None:
        """Remove a queued one-shot request and return it."""
        with self._changed:
            first = self._newest.get(ONE_SHOT_KEY)
            if first and first.session.session_id == key:
                return self._remove(ONE_SHOT_KEY)
            for queued in self._one_shots:
                if queued.session.session_id == key:
                    self._one_shots.remove(queued)
                    return queued
            return None

    def discard_episodes_before(self, session_id: str, episode: int) -> QueuedRequest | None:
        """
        Remove a queued request of an earlier episode and return it.

        The first request of an episode may arrive before the notice of that episode.
        """
        with self._changed:
            queued = self._newest.get(session_id)
            if queued is None or queued.header.episode >= episode:
                return None
            return self._newest.pop(session_id)

    def drop_all(self) -> list[QueuedRequest]:
        """Remove and return all queued requests."""
        with self._changed:
            dropped = [*self._newest.values(), *self._one_shots]
            self._newest.clear()
            self._one_shots.clear()
            self._superseded.clear()
            return dropped

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no request or job is queued or running; False on a timeout."""
        with self._changed:
            self._idle_waiters += 1
            try:
                return self._changed.wait_for(self._is_idle, timeout_s)
            finally:
                self._idle_waiters -= 1

    def _is_idle(self) -> bool:
        has_work = self._newest or self._jobs or self._busy or self._taken
        return self._closed or not has_work

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for _, future in self._jobs:
                if future.set_running_or_notify_cancel():
                    future.set_exception(QueueClosed('the server is shutting down'))
            self._jobs.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._newest) + len(self._one_shots)


def execute_job(job: Callable[[], T], future: Future[T]) -> None:
    """Run a job; its error goes to its future, not to the thread."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
        # break the reference cycle of error and frame, so that the failed job is freed at once
        del future
