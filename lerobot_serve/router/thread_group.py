# SPDX-License-Identifier: Apache-2.0
"""Start threads and end them together. The thread of a transition owns the group."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading

JOIN_LIMIT_S = 5.0
# starts a thread with name, body and the function that wakes it at the end of the process
StartThread = Callable[[str, Callable[[], None], Callable[[], None]], threading.Thread]


class ThreadGroup:
    """Each thread runs until `stop` is set and it is woken."""

    def __init__(self, start: StartThread) -> None:
        self.stop = threading.Event()
        self._start = start
        self._threads: list[threading.Thread] = []
        self._wakes: list[Callable[[], None]] = []

    def start(
        self, name: str, run: Callable[[threading.Event], None], wake: Callable[[], None]
    ) -> None:
        """Start a thread that calls `run(stop)`; `wake` ends its current wait."""
        self._wakes.append(wake)
        thread = self._start(name, partial(run, self.stop), partial(self._end_one, wake))
        self._threads.append(thread)

    def _end_one(self, wake: Callable[[], None]) -> None:
        self.stop.set()
        wake()

    def end(self) -> None:
        """Set `stop`, wake all threads and wait for each up to JOIN_LIMIT_S."""
        self.stop.set()
        for wake in self._wakes:
            wake()
        for thread in self._threads:
            thread.join(JOIN_LIMIT_S)
