# SPDX-License-Identifier: Apache-2.0
"""The servers or routers of one client in order of preference, with failover. Pure."""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.schema import Refusal

# a retry or another server may succeed; any other refusal stays until somebody changes something
TEMPORARY_REFUSALS = frozenset(
    {
        Refusal.CAPACITY,
        Refusal.NAME_IN_USE,
        Refusal.NOT_READY,
        Refusal.DRAINING,
        Refusal.EXCLUSIVE_IN_USE,
        Refusal.UNREACHABLE,
    }
)
# a code of a later version may be either
PERMANENT_REFUSALS = frozenset(Refusal) - TEMPORARY_REFUSALS - {Refusal.OK}


class ServerSelection:
    """
    See the module. Its owner guards it; any thread may read `current` and `failures`.

    A failover tries the next server at once, so that it completes before the queue is empty. A
    growing backoff applies only after all servers have failed in turn. Its length is random, so
    that robots that lost the same server do not reconnect at the same time. Success is a usable
    reply: a server that opens sessions and never replies does not reset the backoff.
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
        # those that failed in this round, and whether permanently
        self._tried: dict[str, bool] = {}
        # whether the last failure ended a round in which all did so permanently
        self.is_refused_by_all = False
        self.current = names[0]
        # the latest failure of each server without a later reply; replaced as a whole
        self.failures: dict[str, str] = {}

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
    def failure_text(self) -> str:
        """The failures of all servers, in order of preference."""
        failures = self.failures
        return '; '.join(f'{name}: {failures[name]}' for name in self._names if name in failures)

    def mark_failed(self, reason: str, *, is_permanent: bool = False) -> float:
        """
        Record a failure of the current server and select the next one. Return the wait before it
        is tried [s].
        """
        self.failures = {**self.failures, self.current: reason}
        self._tried[self.current] = is_permanent
        untried = self.untried
        self.is_refused_by_all = not untried and all(self._tried.values())
        if untried:
            self.current = untried[0]
            return 0.0
        self._tried.clear()
        self.current = self._names[0]
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
