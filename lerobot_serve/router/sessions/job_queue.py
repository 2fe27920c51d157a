"""Work that takes time, for the control thread: done one after the other, in order."""

from __future__ import annotations

from collections.abc import Callable
import queue
import threading

Job = Callable[[], None]


class JobQueue:
    """Any thread puts and ends; `run` is the body of the one thread that does them."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._putting = threading.Lock()
        self._is_over = False

    def put(self, job: Job) -> bool:
        """Have it done; False when the thread ends before."""
        with self._putting:
            if not self._is_over:
                self._queue.put(job)
            return not self._is_over

    def put_and_wait(self, job: Job, limit_s: float) -> bool:
        """Have it done and wait for it; False when that took too long."""
        done = threading.Event()
        return self.put(job) and self.put(done.set) and done.wait(limit_s)

    def run(self) -> None:
        """Do what was put until `end` is called, and that, too."""
        while job := self._queue.get():
            job()

    def end(self) -> None:
        """Take no more."""
        with self._putting:
            self._is_over = True
            self._queue.put(None)
