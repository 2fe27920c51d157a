# SPDX-License-Identifier: Apache-2.0
"""Wait for the next due time of the dispatcher. The thread `alarm`."""

from __future__ import annotations

from collections.abc import Callable
import threading


class RequestTimer:
    """Calls back at due times. Any thread calls `wake` after it has set an earlier due time."""

    def __init__(self) -> None:
        self._woken = threading.Event()

    def wake(self) -> None:
        self._woken.set()

    def run(
        self,
        stop: threading.Event,
        clock: Callable[[], int],
        on_timer: Callable[[int], int | None],
    ) -> None:
        """Call `on_timer` at each due time that it returns and after each `wake`."""
        while not stop.is_set():
            due_ns = on_timer(clock())
            self._woken.wait(None if due_ns is None else max(0.0, (due_ns - clock()) / 1e9))
            self._woken.clear()
