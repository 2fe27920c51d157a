# SPDX-License-Identifier: Apache-2.0
"""
Logs state changes with their reason, the latch of the cage, and the reason for missing commands.

Any thread deposits changes, the tick thread too; the executor thread writes. Repeats are
throttled, see telemetry.log_throttle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from lerobot_serve.edge.session.connection import (
    ConnectionChange,
    ConnectionState,
    ConnectionStatus,
    INITIAL_REASON,
)
from lerobot_serve.telemetry.log_throttle import Log, Logs, LogThrottle

CHANGES_LIMIT = 1000
# a server that runs is found by then
WAITING_NS = 3_000_000_000


class ChangeLog:
    """Any thread calls `changed`, one at a time; the executor thread calls `poll`."""

    def __init__(self, logs: Logs) -> None:
        self._logs, self._throttle = logs, LogThrottle(logs.clock)
        self._changes: deque[ConnectionChange] = deque(maxlen=CHANGES_LIMIT)
        # of the last poll; the first one already finds what went wrong at the start
        self._reason = INITIAL_REASON
        self._begin_ns: int | None = logs.clock()

    def changed(self, change: ConnectionChange) -> None:
        """Deposit a change; does not block."""
        self._changes.append(change)

    def poll(self, status: ConnectionStatus, servers: Sequence[str]) -> None:
        """Log what is new, and once that the edge waits for `servers`."""
        is_changed = bool(self._changes)
        while self._changes:
            self._log_change(self._changes.popleft())
        if not is_changed:
            self._log_reason(status)
        self._reason = status.reason
        self._log_waiting(status, servers)
        self._throttle.flush()

    def _log_change(self, change: ConnectionChange) -> None:
        words = f'{change.before.name} -> {change.after.name}'
        text = f'{words}: {change.reason}' if change.reason else words
        self._throttle.emit(self._level(change.after), words, text)

    def _level(self, state: ConnectionState) -> Log:
        if state == ConnectionState.DEAD:
            return self._logs.error
        is_good = state in (ConnectionState.STREAMING, ConnectionState.CONNECTING)
        return self._logs.info if is_good else self._logs.warning

    def _log_waiting(self, status: ConnectionStatus, servers: Sequence[str]) -> None:
        """Log once that nothing is found; a session that opens is logged by its change."""
        if self._begin_ns is None:
            return
        if status.reason != INITIAL_REASON:
            self._begin_ns = None
        elif self._logs.clock() - self._begin_ns >= WAITING_NS:
            self._begin_ns = None
            self._logs.info(f'waiting for {", ".join(servers)}')

    def _log_reason(self, status: ConnectionStatus) -> None:
        """Log a changed reason while there is no session and the state stays."""
        waits = status.state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
        if waits and status.reason != self._reason:
            text = f'{status.state.name}: {status.reason}'
            self._throttle.emit(self._logs.warning, status.reason, text)


class StandingReasonLog:
    """One thread calls `poll` periodically; a reason seen twice in a row is logged."""

    def __init__(self, log: Log, prefix: str = '') -> None:
        self._log, self._prefix = log, prefix
        self._before = self._logged = ''
        self._commands = 0

    def poll(self, why: str, commands: int = 0) -> None:
        """
        Process the current reason (empty: none) and the count of commands: after a new command the
        same reason is logged again.
        """
        if commands != self._commands:
            self._commands, self._logged = commands, ''
        if why and why == self._before and why != self._logged:
            self._logged = why
            self._log(f'{self._prefix}{why}')
        self._before = why


class LatchLog:
    """Logs that the safety cage latches, and that it is reset. The executor thread."""

    def __init__(self, logs: Logs) -> None:
        self._logs, self._is_latched = logs, False

    def poll(self, reason: str) -> None:
        """Process why the cage is latched, empty if it is not."""
        if bool(reason) is self._is_latched:
            return
        self._is_latched = bool(reason)
        if reason:
            self._logs.error(
                f'Safety cage latched ({reason}); the robot comes to rest and stays there. Fix '
                'the cause, then call ~/reset_cage'
            )
        else:
            self._logs.info('Safety cage reset')
