# SPDX-License-Identifier: Apache-2.0
"""
The health of a slot or of a replica.

Consecutive failures make it unhealthy, consecutive successes healthy. An unhealthy replica is
probed with copies of requests; their replies are discarded. A drain is independent of health (see
slot.py). No ROS; called under RoutingTable.lock.
"""

from __future__ import annotations

from enum import Enum


class HealthState(Enum):
    """UNHEALTHY after consecutive failures, HEALTHY after consecutive successes."""

    HEALTHY = 'healthy'
    UNHEALTHY = 'unhealthy'


class Health:
    """
    The health of one slot or replica: unhealthy after `failures` in a row, healthy after
    `successes`. The time until the first probe doubles with each that fails, up to `max_wait_s`.
    """

    def __init__(
        self, failures: int, *, successes: int, first_probe_s: float, max_wait_s: float
    ) -> None:
        self._failures_to_unhealthy, self._successes_to_recover = failures, successes
        self._first_probe_ns = int(first_probe_s * 1e9)
        self._max_wait_ns = int(max_wait_s * 1e9)
        self.state = HealthState.HEALTHY
        self.reason = ''
        self.failures = 0
        self._successes = 0
        self._wait_ns = self._first_probe_ns
        self._probe_due_ns = 0

    @property
    def is_healthy(self) -> bool:
        return self.state is HealthState.HEALTHY

    def record_success(self) -> bool:
        """Record a success; return True when the state changes to healthy."""
        self.failures = 0
        if self.state is not HealthState.UNHEALTHY:
            return False
        self._successes += 1
        if self._successes < self._successes_to_recover:
            # the next probe after a successful one is due at once
            self._probe_due_ns = 0
            return False
        self.mark_healthy()
        return True

    def record_failure(self, reason: str, now_ns: int) -> bool:
        """Record a failure or a missing reply; return True when the state changes to unhealthy."""
        self.failures += 1
        self._successes = 0
        if self.state is not HealthState.HEALTHY or self.failures < self._failures_to_unhealthy:
            return False
        several = f'{self.failures} consecutive failures, the last'
        self.mark_unhealthy(f'{"1 failure" if self.failures == 1 else several}: {reason}', now_ns)
        return True

    def mark_unhealthy(self, reason: str, now_ns: int) -> None:
        """Set the state to unhealthy, until enough probes succeed."""
        self.state, self.reason = HealthState.UNHEALTHY, reason
        self._successes, self._wait_ns = 0, self._first_probe_ns
        self._probe_due_ns = now_ns + self._wait_ns

    def mark_healthy(self) -> None:
        """Set the state to healthy and reset the counts."""
        self.state, self.reason = HealthState.HEALTHY, ''
        self.failures = self._successes = 0
        self._wait_ns = self._first_probe_ns

    def probe_now(self) -> None:
        """Make the next probe due now."""
        self._probe_due_ns = 0

    def is_probe_due(self, now_ns: int) -> bool:
        return self.state is HealthState.UNHEALTHY and now_ns >= self._probe_due_ns

    def probe_failed(self, now_ns: int) -> None:
        """Record a failed probe and double the time until the next one."""
        self._successes = 0
        self._wait_ns = min(2 * self._wait_ns, self._max_wait_ns)
        self._probe_due_ns = now_ns + self._wait_ns

    def probe_sent(self, now_ns: int, timeout_ns: int) -> None:
        """Record a sent probe; the next one is due when its reply is overdue."""
        self._probe_due_ns = now_ns + max(self._first_probe_ns, timeout_ns)
