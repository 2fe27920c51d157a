# SPDX-License-Identifier: Apache-2.0
"""Slow jobs for the thread `control`, run one after the other."""

from __future__ import annotations

from collections.abc import Callable
import queue
import threading

Job = Callable[[], None]


class JobQueue:
    """Any thread puts and ends; `run` is the body of the one thread that runs them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._putting = threading.Lock()
        self._is_over = False

    def put(self, job: Job) -> bool:
        """Queue a job; False when the queue has ended."""
        with self._putting:
            if not self._is_over:
                self._queue.put(job)
            return not self._is_over

    def put_and_wait(self, job: Job, limit_s: float) -> bool:
        """Queue a job and wait for it; False after the time limit."""
        done = threading.Event()
        return self.put(job) and self.put(done.set) and done.wait(limit_s)

    def run(self) -> None:
        """Run jobs until `end` is called, those queued before included."""
        while job := self._queue.get():
            job()

    def end(self) -> None:
        """Refuse further jobs and end `run`."""
        with self._putting:
            self._is_over = True
            self._queue.put(None)
