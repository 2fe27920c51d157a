# SPDX-License-Identifier: Apache-2.0
"""Run slow jobs one after the other in the thread `control`."""

from __future__ import annotations

from collections.abc import Callable
import queue
import threading

Job = Callable[[], None]


class JobQueue:
    """Any thread calls `put` and `end`; one thread calls `run`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._has_ended = False

    def put(self, job: Job) -> bool:
        """Queue a job; return False after `end`."""
        with self._lock:
            if not self._has_ended:
                self._queue.put(job)
            return not self._has_ended

    def put_and_wait(self, job: Job, limit_s: float) -> bool:
        """Queue a job and wait until it has run; return False after the time limit."""
        done = threading.Event()
        return self.put(job) and self.put(done.set) and done.wait(limit_s)

    def run(self) -> None:
        """Run jobs until `end` is called, including those queued before."""
        while job := self._queue.get():
            job()

    def end(self) -> None:
        """Reject further jobs, and let `run` return after the queued ones."""
        with self._lock:
            self._has_ended = True
            self._queue.put(None)
