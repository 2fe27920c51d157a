"""
What waits for the inference thread: the newest request of each client and nothing older, requests
without a session, which share the place of one client, and jobs, which go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
import threading
import time
from typing import TypeVar

from lerobot_serve.server.inference.schedulers import RoundRobin, Scheduler
from lerobot_serve.server.sessions.session_table import Session
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import Observation

T = TypeVar('T')
Clock = Callable[[], int]


@dataclass(slots=True, eq=False)
class DecodedRequest:
    """What the worker has read of a request, None until then, for those who tell of it."""

    observation: Observation | None = None


@dataclass(frozen=True, slots=True)
class QueuedRequest:
    """
    One request as it arrived. `runs_dry_ns` is when its robot has nothing left to play, by this
    server's clock; `use` takes the answer instead of the session's reply topic. The mailbox fills
    in `since_ns`, when its client joined the line, and `superseded`; the worker fills in `read`.
    """

    session: Session
    raw: bytes
    header: Header
    arrived_ns: int
    runs_dry_ns: int = 0
    since_ns: int = 0
    superseded: int = 0
    use: Callable | None = None
    read: DecodedRequest = field(default_factory=DecodedRequest, compare=False)


# no session is called like this
ONE_SHOT_KEY = '\0'


class QueueClosed(Exception):
    """The inference thread has ended or is about to."""


class RequestQueue:
    """
    Any thread puts and calls. The inference thread takes; by taking again it says that the last is
    done. `close` lets it go.
    """

    def __init__(self, clock: Clock = time.monotonic_ns) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._mail: dict[str, QueuedRequest] = {}
        # behind the one that has their place in the line
        self._one_shots: deque[QueuedRequest] = deque()
        self._superseded: dict[str, int] = {}
        self._jobs: deque[tuple[Callable[[], object], Future]] = deque()
        self._scheduler: Scheduler = RoundRobin()
        self._clients: Callable[[], int] = lambda: 0
        self._busy = False
        self._closed = False

    def schedule(self, scheduler: Scheduler, clients: Callable[[], int]) -> None:
        """Serve in this order from now on; `clients` counts who may have a request."""
        with self._changed:
            self._scheduler, self._clients = scheduler, clients
            self._changed.notify_all()

    def put(self, mail: QueuedRequest) -> QueuedRequest | None:
        """
        Deposit a request; return the older one whose place it took.

        The client keeps the older one's place in the line, so that asking often gains nothing and
        loses nothing.
        """
        name = mail.session.session_id
        with self._changed:
            older = self._mail.get(name)
            if older:
                self._superseded[name] = self._superseded.get(name, 0) + 1
                # a robot that stands still has done so since it asked first
                runs_dry_ns = min(older.runs_dry_ns, mail.runs_dry_ns)
                mail = replace(mail, runs_dry_ns=runs_dry_ns, since_ns=older.since_ns)
            else:
                mail = replace(mail, since_ns=mail.arrived_ns)
            self._mail[name] = mail
            self._changed.notify_all()
            return older

    def put_one_shot(self, mail: QueuedRequest, limit: int) -> bool:
        """
        Deposit a request without a session; False when `limit` of them wait already.

        However many there are, robots wait for one of them at a time.
        """
        with self._changed:
            if ONE_SHOT_KEY not in self._mail:
                self._mail[ONE_SHOT_KEY] = replace(mail, since_ns=mail.arrived_ns)
            elif 1 + len(self._one_shots) >= limit:
                return False
            else:
                self._one_shots.append(mail)
            self._changed.notify_all()
            return True

    def take(self) -> list[QueuedRequest] | None:
        """
        Run what others asked for, wait for requests and return those that are served together;
        None when closed.
        """
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not (self._closed or self._jobs or (picked := self._pick())):
                    pass
                if self._closed:
                    return None
                self._busy = True
                job = self._jobs.popleft() if self._jobs else None
                if not job:
                    return picked
            run_job(*job)
            # what it made must not be held here while nothing comes
            del job

    def _pick(self) -> list[QueuedRequest]:
        """Return what is served now; otherwise wait, and return nothing."""
        if not self._mail:
            self._changed.wait()
            return []
        line = list(self._mail.items())
        waiting = [mail for _, mail in line]
        pick = self._scheduler.pick(waiting, self._clock(), self._clients())
        if not pick.positions:
            self._changed.wait(pick.wait_ns / 1e9)
            return []
        return [self._withdraw(line[position][0]) for position in pick.positions]

    def _withdraw(self, name: str) -> QueuedRequest:
        mail = self._mail.pop(name)
        if name == ONE_SHOT_KEY:
            self._promote_one_shot()
        count = self._superseded.get(name, 0)
        return replace(mail, superseded=count)

    def _promote_one_shot(self) -> None:
        """Put the next one at the end of the line, where a client would be that asks again."""
        if self._one_shots:
            mail = self._one_shots.popleft()
            self._mail[ONE_SHOT_KEY] = replace(mail, since_ns=self._clock())

    def post(self, job: Callable[[], T]) -> Future[T]:
        """Let the inference thread run `job` before its next request."""
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                future.set_exception(QueueClosed('the server is shutting down'))
                return future
            self._jobs.append((job, future))
            self._changed.notify_all()
        return future

    def call(self, job: Callable[[], T], timeout_s: float | None = None) -> T:
        """
        Run `job` in the inference thread and return what it returns. Raises what it raises, and
        TimeoutError when it has not even begun by then; it is not run any more.
        """
        future = self.post(job)
        wait([future], timeout_s)
        if future.cancel():
            raise TimeoutError(f'the policy was still at work after {timeout_s:g} s')
        try:
            return future.result()
        finally:
            # its error holds this frame, see run_job
            del future

    def forget(self, session_id: str) -> QueuedRequest | None:
        """Drop what is left of a session that ended; return the request that was waiting."""
        with self._changed:
            self._superseded.pop(session_id, None)
            return self._mail.pop(session_id, None)

    def withdraw_one_shot(self, key: str) -> QueuedRequest | None:
        """Drop a request without a session that still waits, and return it."""
        with self._changed:
            first = self._mail.get(ONE_SHOT_KEY)
            if first and first.session.session_id == key:
                return self._withdraw(ONE_SHOT_KEY)
            for mail in self._one_shots:
                if mail.session.session_id == key:
                    self._one_shots.remove(mail)
                    return mail
            return None

    def forget_episodes_before(self, session_id: str, episode: int) -> QueuedRequest | None:
        """
        Drop a waiting request of an episode that has ended, and return it.

        The first request of the new episode may come before the word that it has begun.
        """
        with self._changed:
            mail = self._mail.get(session_id)
            if mail is None or mail.header.episode >= episode:
                return None
            return self._mail.pop(session_id)

    def clear(self) -> list[QueuedRequest]:
        """Drop and return all that waits."""
        with self._changed:
            dropped = [*self._mail.values(), *self._one_shots]
            self._mail.clear()
            self._one_shots.clear()
            self._superseded.clear()
            return dropped

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until nothing waits or is being answered; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or not (self._mail or self._jobs or self._busy), timeout_s
            )

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for _, future in self._jobs:
                if future.set_running_or_notify_cancel():
                    future.set_exception(QueueClosed('the server is shutting down'))
            self._jobs.clear()
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._mail) + len(self._one_shots)


def run_job(job: Callable[[], object], future: Future) -> None:
    """The error of a job belongs to whoever asked for it, not to the thread."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
        # the error holds this frame, which would hold the error: what failed must be freed at once
        del future
