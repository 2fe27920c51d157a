"""
Whom to ask: the servers or routers of a robot, the preferred one first.

The next one is asked at once, so that a failover fits into what is buffered; only when all have
failed one after the other is there a wait, which grows. Its length is drawn at random, so that
robots that lost the same server do not all come back at the same moment. What counts as success is
an answer: a server that opens sessions and answers nothing is no reason to stop waiting.
"""

from __future__ import annotations

from collections.abc import Callable


class ServerSelection:
    """
    An ordered list and a place in it. Owned by the requester thread; any thread may read `present`
    and `failures`.
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
        # the latest reason of each that has not answered since; replaced as a whole
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
        """Whether the present one is asked because another one failed."""
        return bool(self._tried)

    @property
    def text(self) -> str:
        """What is wrong with whom, in the order of preference."""
        failures = self.failures
        return '; '.join(f'{name}: {failures[name]}' for name in self._names if name in failures)

    def failed(self, reason: str) -> float:
        """
        Note that the present one failed and make the next one the present one. Return how long to
        wait before asking it [s].
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
        """Note an answer of the present one that could be used."""
        self._tried.clear()
        self._backoff_s = self._first_s
        if self.present in self.failures:
            self.failures = {n: r for n, r in self.failures.items() if n != self.present}

    def return_to_preferred(self) -> bool:
        """
        Make the preferred one the present one; tell whether that is a change, so that a session
        has to be opened. For episode boundaries, where a change of server harms nothing.
        """
        if self.present == self.preferred or self.preferred in self._tried:
            return False
        self.present = self.preferred
        return True
