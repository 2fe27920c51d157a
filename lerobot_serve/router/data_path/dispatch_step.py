# SPDX-License-Identifier: Apache-2.0
"""
One step of the dispatcher: its time, and the calls deferred until the lock is released.

Publishing runs outside the lock, so that no thread waits for the publishing of another. One thread
at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec

P = ParamSpec('P')


class DispatchStep:
    """Collects deferred calls; `run` makes them in the order of `defer`."""

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
