# SPDX-License-Identifier: Apache-2.0
"""
One step of the dispatcher: its time, and the calls deferred until the lock is released; and the
timer that begins a step when one is due.

Publishing runs outside the lock, so that no thread waits for the publishing of another.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
from typing import ParamSpec

P = ParamSpec('P')


class DispatchStep:
    """Collects deferred calls; `run` makes them in the order of `defer`. One thread at a time."""

    __slots__ = ('_calls', 'now_ns')

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self._calls: list[Callable[[], None]] = []

    def defer(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Add a call to make after the lock is released."""
        self._calls.append(partial(call, *args, **kwargs))

    def run(self) -> None:
        """Make the deferred calls. Without the lock."""
        for call in self._calls:
            call()


class RequestTimer:
    """
    Calls back at due times, in the thread `alarm`. Any thread calls `wake` after it has set an
    earlier due time.
    """

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
