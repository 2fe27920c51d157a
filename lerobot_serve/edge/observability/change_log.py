# SPDX-License-Identifier: Apache-2.0
"""
Logs state changes with their reason, and counts of drops and stalls.

Any thread deposits changes, the tick thread too; the executor thread writes. Repeats are
throttled, see telemetry.log_throttle.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from lerobot_serve.edge.session.connection import (
    ConnectionChange,
    ConnectionState,
    ConnectionStatus,
)
from lerobot_serve.telemetry.log_throttle import Log, LogThrottle, PERIOD_S

CHANGES_LIMIT = 1000
# caused by an operator, or part of the normal work of a router
EXPECTED_REASONS = {'cleared_action', 'policy_changed'}


class ChangeLog:
    """Any thread calls `changed`, one at a time; the executor thread calls `look`."""

    def __init__(self, *, inform: Log, warn: Log, complain: Log, clock: Callable[[], int]) -> None:
        self._inform, self._warn, self._complain = inform, warn, complain
        self._clock, self._throttle = clock, LogThrottle(clock)
        self._changes: deque[ConnectionChange] = deque(maxlen=CHANGES_LIMIT)
        self._reason = ''
        self._counted: Counter[str] = Counter()
        self._counted_ns: int | None = None

    def changed(self, change: ConnectionChange) -> None:
        """Deposit a change; does not block."""
        self._changes.append(change)

    def look(self, standing: ConnectionStatus, troubles: Counter[str]) -> None:
        """Log what is new. `troubles` are counts since start, by name."""
        is_changed = bool(self._changes)
        while self._changes:
            self._tell(self._changes.popleft())
        if not is_changed:
            self._log_reason(standing)
        self._reason = standing.reason
        self._log_problems(troubles)
        self._throttle.flush()

    def _tell(self, change: ConnectionChange) -> None:
        words = f'{change.before.name} -> {change.after.name}'
        text = f'{words}: {change.reason}' if change.reason else words
        self._throttle.emit(self._level(change.after), words, text)

    def _level(self, state: ConnectionState) -> Log:
        if state == ConnectionState.DEAD:
            return self._complain
        return (
            self._inform
            if state in (ConnectionState.STREAMING, ConnectionState.CONNECTING)
            else self._warn
        )

    def _log_reason(self, standing: ConnectionStatus) -> None:
        """Log a changed reason while there is no session and the state stays."""
        waits = standing.state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
        if waits and self._reason and standing.reason != self._reason:
            text = f'{standing.state.name}: {standing.reason}'
            self._throttle.emit(self._warn, standing.reason, text)

    def _log_problems(self, troubles: Counter[str]) -> None:
        """Log new kinds of problems at once, the others once per period."""
        now_ns = self._clock()
        is_early = self._counted_ns is not None and now_ns - self._counted_ns < 1e9 * PERIOD_S
        new = {
            name: count - self._counted[name]
            for name, count in sorted(troubles.items())
            if count > self._counted[name] and name not in EXPECTED_REASONS
        }
        if is_early:
            new = {name: count for name, count in new.items() if name not in self._counted}
        if not new:
            return
        for name in new:
            self._counted[name] = troubles[name]
        if not is_early:
            self._counted_ns = now_ns
        self._warn(
            'dropped or failed since the previous report: '
            + ', '.join(f'{n} {c}' for n, c in new.items())
        )
