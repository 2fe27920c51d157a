# SPDX-License-Identifier: Apache-2.0
"""
Logs state changes with their reason, counts of drops and stalls, the latch of the cage, and the
reason for missing commands.

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
    INITIAL_REASON,
)
from lerobot_serve.telemetry.log_throttle import Log, LogThrottle, PERIOD_S

CHANGES_LIMIT = 1000
# caused by an operator, or part of the normal work of a router
EXPECTED_REASONS = {'cleared_action', 'policy_changed'}


class ChangeLog:
    """Any thread calls `changed`, one at a time; the executor thread calls `poll`."""

    def __init__(self, *, info: Log, warning: Log, error: Log, clock: Callable[[], int]) -> None:
        self._log_info, self._log_warning, self._log_error = info, warning, error
        self._clock, self._throttle = clock, LogThrottle(clock)
        self._changes: deque[ConnectionChange] = deque(maxlen=CHANGES_LIMIT)
        # of the last poll; the first one already finds what went wrong at the start
        self._reason = INITIAL_REASON
        self._counted: Counter[str] = Counter()
        self._counted_ns: int | None = None

    def changed(self, change: ConnectionChange) -> None:
        """Deposit a change; does not block."""
        self._changes.append(change)

    def poll(self, status: ConnectionStatus, problems: Counter[str]) -> None:
        """Log what is new. `problems` are counts since start, by name."""
        is_changed = bool(self._changes)
        while self._changes:
            self._log_change(self._changes.popleft())
        if not is_changed:
            self._log_reason(status)
        self._reason = status.reason
        self._log_problems(problems)
        self._throttle.flush()

    def _log_change(self, change: ConnectionChange) -> None:
        words = f'{change.before.name} -> {change.after.name}'
        text = f'{words}: {change.reason}' if change.reason else words
        self._throttle.emit(self._level(change.after), words, text)

    def _level(self, state: ConnectionState) -> Log:
        if state == ConnectionState.DEAD:
            return self._log_error
        return (
            self._log_info
            if state in (ConnectionState.STREAMING, ConnectionState.CONNECTING)
            else self._log_warning
        )

    def _log_reason(self, status: ConnectionStatus) -> None:
        """Log a changed reason while there is no session and the state stays."""
        waits = status.state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
        if waits and status.reason != self._reason:
            text = f'{status.state.name}: {status.reason}'
            self._throttle.emit(self._log_warning, status.reason, text)

    def _log_problems(self, problems: Counter[str]) -> None:
        """Log new kinds of problems at once, the others once per period."""
        now_ns = self._clock()
        is_early = self._counted_ns is not None and now_ns - self._counted_ns < 1e9 * PERIOD_S
        new = {
            name: count - self._counted[name]
            for name, count in sorted(problems.items())
            if count > self._counted[name] and name not in EXPECTED_REASONS
        }
        if is_early:
            new = {name: count for name, count in new.items() if name not in self._counted}
        if not new:
            return
        for name in new:
            self._counted[name] = problems[name]
        if not is_early:
            self._counted_ns = now_ns
        self._log_warning(
            'dropped or failed since the previous report: '
            + ', '.join(f'{n} {c}' for n, c in new.items())
        )


class NotCommandedWarning:
    """One thread calls `poll` periodically; a reason seen twice in a row is logged."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._before = self._logged = ''
        self._commands = 0

    def poll(self, why: str, commands: int) -> None:
        """
        Process the current reason (empty: none) and the count of commands: after a new command the
        same reason is logged again.
        """
        if commands != self._commands:
            self._commands, self._logged = commands, ''
        if why and why == self._before and why != self._logged:
            self._logged = why
            self._log(f'no commands sent: {why}')
        self._before = why


class LatchLog:
    """Logs that the safety cage latches, and that it is reset. The executor thread."""

    def __init__(self, *, error: Log, info: Log) -> None:
        self._log_error, self._log_info = error, info
        self._is_latched = False

    def poll(self, reason: str) -> None:
        """Process why the cage is latched, empty if it is not."""
        if bool(reason) is self._is_latched:
            return
        self._is_latched = bool(reason)
        if reason:
            self._log_error(
                f'Safety cage latched ({reason}); the robot comes to rest and stays there. Fix '
                'the cause, then call ~/reset_cage'
            )
        else:
            self._log_info('Safety cage reset')
