"""
Whether a slot, or one replica of it, answers.

Failures in a row make it unhealthy, clean answers in a row bring it back. Meanwhile it is probed
with copies of robots' requests, whose answers go to no robot. What an operator drains is no matter
of health (see slots.py). Plain; the dispatcher's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """UNHEALTHY by its failures."""

    HEALTHY = 'healthy'
    UNHEALTHY = 'unhealthy'


@dataclass(frozen=True, slots=True)
class HealthRules:
    """
    threshold  failures in a row that make it unhealthy
    trials     clean answers in a row that bring back
    retry_ns   time to the first trial; doubles with each that fails, up to `retry_max_ns`
    """

    threshold: int
    trials: int = 3
    retry_ns: int = 2_000_000_000
    retry_max_ns: int = 60_000_000_000


class Health:
    """One of a slot or a replica."""

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.state = State.HEALTHY
        self.reason = ''
        self.failures = 0
        self._clean = 0
        self._wait_ns = rules.retry_ns
        self._trial_due_ns = 0

    @property
    def is_healthy(self) -> bool:
        return self.state is State.HEALTHY

    def answered(self) -> bool:
        """Note a clean answer; return whether that brought it back."""
        self.failures = 0
        if self.state is not State.UNHEALTHY:
            return False
        self._clean += 1
        if self._clean < self.rules.trials:
            # it answers: the next trial need not wait
            self._trial_due_ns = 0
            return False
        self.restore()
        return True

    def failed(self, reason: str, now_ns: int) -> bool:
        """
        Note an answer that is none, or one that did not come; return whether that made it
        unhealthy.
        """
        self.failures += 1
        self._clean = 0
        if self.state is not State.HEALTHY or self.failures < self.rules.threshold:
            return False
        times = 'time' if self.failures == 1 else 'times in a row'
        self.suspend(f'failed {self.failures} {times}, the last: {reason}', now_ns)
        return True

    def suspend(self, reason: str, now_ns: int) -> None:
        """Take no part until trials are answered."""
        self.state, self.reason = State.UNHEALTHY, reason
        self._clean, self._wait_ns = 0, self.rules.retry_ns
        self._trial_due_ns = now_ns + self._wait_ns

    def restore(self) -> None:
        """Take part again, with nothing held against it."""
        self.state, self.reason = State.HEALTHY, ''
        self.failures = self._clean = 0
        self._wait_ns = self.rules.retry_ns

    def hurry(self) -> None:
        """Let the next trial be due now."""
        self._trial_due_ns = 0

    def wants_trial(self, now_ns: int) -> bool:
        return self.state is State.UNHEALTHY and now_ns >= self._trial_due_ns

    def trial_failed(self, now_ns: int) -> None:
        """Wait longer until the next."""
        self._clean = 0
        self._wait_ns = min(2 * self._wait_ns, self.rules.retry_max_ns)
        self._trial_due_ns = now_ns + self._wait_ns

    def trial_sent(self, now_ns: int, timeout_ns: int) -> None:
        """One trial at a time: the next is due when this one's answer is overdue."""
        self._trial_due_ns = now_ns + max(self.rules.retry_ns, timeout_ns)
