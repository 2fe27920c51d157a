# SPDX-License-Identifier: Apache-2.0
"""
Health of a slot, or of one replica of it.

Failures in a row make it unhealthy, successes in a row make it healthy. An unhealthy replica is
probed with copies of requests; their replies are discarded. A drain is independent of health (see
slot.py). No ROS; called under the dispatcher's lock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class HealthState(Enum):
    """UNHEALTHY after consecutive failures."""

    HEALTHY = 'healthy'
    UNHEALTHY = 'unhealthy'


@dataclass(frozen=True, slots=True)
class HealthRules:
    """
    failures_to_unhealthy  failures in a row that make it unhealthy
    trials                 successes in a row that make it healthy again
    first_probe_ns         time to the first probe; doubles with each failed probe
    max_probe_interval_ns  longest time between two probes
    """

    failures_to_unhealthy: int
    trials: int = 3
    first_probe_ns: int = 2_000_000_000
    max_probe_interval_ns: int = 60_000_000_000


class Health:
    """The health of one slot or replica."""

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

    def record_success(self) -> bool:
        """Record a success; return whether that made it healthy."""
        self.failures = 0
        if self.state is not HealthState.UNHEALTHY:
            return False
        self._successes += 1
        if self._successes < self.rules.trials:
            # a probe succeeded: the next one is due at once
            self._probe_due_ns = 0
            return False
        self.mark_healthy()
        return True

    def record_failure(self, reason: str, now_ns: int) -> bool:
        """
        Record a failure or a missing reply; return whether that made it unhealthy.
        """
        self.failures += 1
        self._successes = 0
        if (
            self.state is not HealthState.HEALTHY
            or self.failures < self.rules.failures_to_unhealthy
        ):
            return False
        times = 'time' if self.failures == 1 else 'times in a row'
        self.mark_unhealthy(f'failed {self.failures} {times}, the last: {reason}', now_ns)
        return True

    def mark_unhealthy(self, reason: str, now_ns: int) -> None:
        """Mark it unhealthy until enough probes succeed."""
        self.state, self.reason = HealthState.UNHEALTHY, reason
        self._successes, self._wait_ns = 0, self.rules.first_probe_ns
        self._probe_due_ns = now_ns + self._wait_ns

    def mark_healthy(self) -> None:
        """Mark it healthy and reset its counts."""
        self.state, self.reason = HealthState.HEALTHY, ''
        self.failures = self._successes = 0
        self._wait_ns = self.rules.first_probe_ns

    def probe_now(self) -> None:
        """Make the next probe due now."""
        self._probe_due_ns = 0

    def is_probe_due(self, now_ns: int) -> bool:
        return self.state is HealthState.UNHEALTHY and now_ns >= self._probe_due_ns

    def probe_failed(self, now_ns: int) -> None:
        """Double the time until the next probe."""
        self._successes = 0
        self._wait_ns = min(2 * self._wait_ns, self.rules.max_probe_interval_ns)
        self._probe_due_ns = now_ns + self._wait_ns

    def probe_sent(self, now_ns: int, timeout_ns: int) -> None:
        """Send one probe at a time: the next is due when this one's reply is overdue."""
        self._probe_due_ns = now_ns + max(self.rules.first_probe_ns, timeout_ns)
