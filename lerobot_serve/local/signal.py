# SPDX-License-Identifier: Apache-2.0
"""
A flag that one thread at a time waits for. It is threading.Event for one waiter, without its
condition, which with cold caches takes as long as a tenth of a request on the local path.
"""

from __future__ import annotations

import contextlib
import threading
import time


class Signal:
    """Any thread sets and clears it."""

    def __init__(self) -> None:
        self._is_set = False
        # open, which is to say free, from `set` to `clear` or to the end of a wait
        self._gate = threading.Lock()
        self._gate.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """End the wait."""
        self._is_set = True
        with contextlib.suppress(RuntimeError):
            # open already
            self._gate.release()

    def clear(self) -> None:
        self._is_set = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout_s: float) -> bool:
        """Return whether it is set within the timeout."""
        end_s = time.monotonic() + timeout_s
        # a gate that another thread opened and cleared says nothing
        while not self._is_set and (left_s := end_s - time.monotonic()) > 0:
            self._gate.acquire(timeout=left_s)
        return self._is_set
