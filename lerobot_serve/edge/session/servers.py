# SPDX-License-Identifier: Apache-2.0
"""
Server selection: the servers or routers of a robot in order of preference, with failover.

A failover tries the next server at once, so that it fits into the queued time. Only when all have
failed in turn a backoff applies, which grows. Its length is random, so that robots that lost the
same server do not reconnect at the same moment. Success is a usable reply: a server that opens
sessions and never replies does not reset the backoff.
"""

from __future__ import annotations

from collections.abc import Callable


class ServerSelection:
    """
    The ordered servers and the current one. Owned by the request thread; any thread may read
    `present` and `failures`.
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
        self.present = names[0]
        # the latest failure of each without a reply since; replaced as a whole
        self.failures: dict[str, str] = {}

    @property
    def preferred(self) -> str:
        return self._names[0]

    @property
    def has_others(self) -> bool:
        return len(self._names) > 1

    @property
    def untried(self) -> tuple[str, ...]:
        """The others that have not failed in this round, in turn."""
        after = self._names.index(self.present) + 1
        in_turn = self._names[after:] + self._names[:after]
        away = {self.present, *self._tried}
        return tuple(name for name in in_turn if name not in away)

    @property
    def is_failing_over(self) -> bool:
        """Whether the current server is tried because another one failed."""
        return bool(self._tried)

    @property
    def text(self) -> str:
        """The failures of all servers, in order of preference."""
        failures = self.failures
        return '; '.join(f'{name}: {failures[name]}' for name in self._names if name in failures)

    def failed(self, reason: str) -> float:
        """
        Record a failure of the current server and select the next one. Return the wait before it
        is tried [s].
        """
        self.failures = {**self.failures, self.present: reason}
        self._tried.add(self.present)
        untried = self.untried
        if untried:
            self.present = untried[0]
            return 0.0
        self._tried.clear()
        self.present = self.preferred
        wait_s = self._backoff_s * self._random()
        self._backoff_s = min(2 * self._backoff_s, self._max_s)
        return wait_s

    def answered(self) -> None:
        """Record a usable reply of the current server; resets the backoff."""
        self._tried.clear()
        self._backoff_s = self._first_s
        if self.present in self.failures:
            self.failures = {n: r for n, r in self.failures.items() if n != self.present}

    def return_to_preferred(self) -> bool:
        """
        Select the preferred server; return whether that is a change, which requires a new session.
        For episode boundaries, where a change of server is harmless.
        """
        if self.present == self.preferred or self.preferred in self._tried:
            return False
        self.present = self.preferred
        return True
