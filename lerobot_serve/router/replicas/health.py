"""
Whether a slot, or one replica of it, answers.

Failures in a row make it unhealthy, clean answers in a row bring it back. Meanwhile it is probed
with copies of robots' requests, whose answers go to no robot. What an operator drains is no matter
of health (see slots.py). Plain; the dispatcher's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HealthState(Enum):
    """UNHEALTHY by its failures."""

    HEALTHY = 'healthy'
    UNHEALTHY = 'unhealthy'


@dataclass(frozen=True, slots=True)
class HealthRules:
    """
    failures_to_unhealthy  failures in a row that make it unhealthy
    trials     clean answers in a row that bring back
    first_probe_ns   time to the first trial; doubles with each that fails, up to `max_probe_interval_ns`
    """

    failures_to_unhealthy: int
    trials: int = 3
    first_probe_ns: int = 2_000_000_000
    max_probe_interval_ns: int = 60_000_000_000


class Health:
    """One of a slot or a replica."""

    def __init__(self, rules: HealthRules) -> None:
        self.rules = rules
        self.state = HealthState.HEALTHY
        self.reason = ''
        self.failures = 0
        self._successes = 0
        self._wait_ns = rules.first_probe_ns
        self._probe_due_ns = 0

    @property
    def is_healthy(self) -> bool:
        return self.state is HealthState.HEALTHY

    def answered(self) -> bool:
        """Note a clean answer; return whether that brought it back."""
        self.failures = 0
        if self.state is not HealthState.UNHEALTHY:
            return False
        self._successes += 1
        if self._successes < self.rules.trials:
            # it answers: the next trial need not wait
            self._probe_due_ns = 0
            return False
        self.restore()
        return True

    def failed(self, reason: str, now_ns: int) -> bool:
        """
        Note an answer that is none, or one that did not come; return whether that made it
        unhealthy.
        """
        self.failures += 1
        self._successes = 0
        if (
            self.state is not HealthState.HEALTHY
            or self.failures < self.rules.failures_to_unhealthy
        ):
            return False
        times = 'time' if self.failures == 1 else 'times in a row'
        self.suspend(f'failed {self.failures} {times}, the last: {reason}', now_ns)
        return True

    def suspend(self, reason: str, now_ns: int) -> None:
        """Take no part until trials are answered."""
        self.state, self.reason = HealthState.UNHEALTHY, reason
        self._successes, self._wait_ns = 0, self.rules.first_probe_ns
        self._probe_due_ns = now_ns + self._wait_ns

    def restore(self) -> None:
        """Take part again, with nothing held against it."""
        self.state, self.reason = HealthState.HEALTHY, ''
        self.failures = self._successes = 0
        self._wait_ns = self.rules.first_probe_ns

    def probe_now(self) -> None:
        """Let the next trial be due now."""
        self._probe_due_ns = 0

    def is_probe_due(self, now_ns: int) -> bool:
        return self.state is HealthState.UNHEALTHY and now_ns >= self._probe_due_ns

    def probe_failed(self, now_ns: int) -> None:
        """Wait longer until the next."""
        self._successes = 0
        self._wait_ns = min(2 * self._wait_ns, self.rules.max_probe_interval_ns)
        self._probe_due_ns = now_ns + self._wait_ns

    def probe_sent(self, now_ns: int, timeout_ns: int) -> None:
        """One trial at a time: the next is due when this one's answer is overdue."""
        self._probe_due_ns = now_ns + max(self.rules.first_probe_ns, timeout_ns)
