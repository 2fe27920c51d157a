# SPDX-License-Identifier: Apache-2.0
"""
One step of the dispatcher: its time, and the calls to make once the lock is released.

So one thread never waits for the publishing of another. One thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import ParamSpec

P = ParamSpec('P')


class DispatchStep:
    """See the module. `run` makes the calls in the order in which they were deferred."""

    __slots__ = ('_calls', 'now_ns')

    def __init__(self, now_ns: int) -> None:
        self.now_ns = now_ns
        self._calls: list[Callable[[], None]] = []

    def defer(self, call: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Make this call after the lock is released."""
        self._calls.append(partial(call, *args, **kwargs))

    def run(self) -> None:
        """Make the deferred calls; the lock is released."""
        for call in self._calls:
            call()
