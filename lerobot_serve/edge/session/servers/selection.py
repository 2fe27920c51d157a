# SPDX-License-Identifier: Apache-2.0
"""
Server selection: the servers or routers of a robot in order of preference, with failover.

A failover tries the next server at once, so that it completes before the queue is empty. A growing
backoff applies only after all servers have failed in turn. Its length is random, so that robots
that lost the same server do not reconnect at the same time. Success is a usable reply: a server
that opens sessions and never replies does not reset the backoff.
"""

from __future__ import annotations

from collections.abc import Callable


class ServerSelection:
    """
    The ordered servers and the current one. Owned by the request thread; any thread may read
    `current` and `failures`.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        *,
        first_backoff_s: float,
        max_backoff_s: float,
        random: Callable[[], float],
    ) -> None:
        """`random` gives numbers in [0, 1)."""
        self._names = names
        self._first_s, self._max_s, self._random = first_backoff_s, max_backoff_s, random
        self._backoff_s = first_backoff_s
        self._tried: set[str] = set()
        self.current = names[0]
        # the latest failure of each server without a later reply; replaced as a whole
        self.failures: dict[str, str] = {}

    @property
    def preferred(self) -> str:
        return self._names[0]

    @property
    def has_alternatives(self) -> bool:
        return len(self._names) > 1

    @property
    def untried(self) -> tuple[str, ...]:
        """The other servers that have not failed in this round, in order."""
        after = self._names.index(self.current) + 1
        in_turn = self._names[after:] + self._names[:after]
        excluded = {self.current, *self._tried}
        return tuple(name for name in in_turn if name not in excluded)

    @property
    def is_failing_over(self) -> bool:
        """Whether the current server is tried because another one failed."""
        return bool(self._tried)

    @property
    def failure_text(self) -> str:
        """The failures of all servers, in order of preference."""
        failures = self.failures
        return '; '.join(f'{name}: {failures[name]}' for name in self._names if name in failures)

    def mark_failed(self, reason: str) -> float:
        """
        Record a failure of the current server and select the next one. Return the wait before it
        is tried [s].
        """
        self.failures = {**self.failures, self.current: reason}
        self._tried.add(self.current)
        untried = self.untried
        if untried:
            self.current = untried[0]
            return 0.0
        self._tried.clear()
        self.current = self.preferred
        wait_s = self._backoff_s * self._random()
        self._backoff_s = min(2 * self._backoff_s, self._max_s)
        return wait_s

    def mark_succeeded(self) -> None:
        """Record a usable reply of the current server; resets the backoff."""
        self._tried.clear()
        self._backoff_s = self._first_s
        if self.current in self.failures:
            self.failures = {n: r for n, r in self.failures.items() if n != self.current}

    def return_to_better(self, is_available: Callable[[str], bool]) -> bool:
        """
        Select the first available server before the current one; return whether there is one,
        which requires a new session. Call at an episode boundary, where a change is harmless.
        """
        for name in self._names[: self._names.index(self.current)]:
            if name not in self._tried and is_available(name):
                self.current = name
                return True
        return False
