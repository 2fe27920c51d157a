# SPDX-License-Identifier: Apache-2.0
"""
What the edge logs, each once and again when it changes: the state of the connection, why commands
are missing, the latch of the cage, drops and failures by their number, what can happen in each
control step by its share of the steps, and the loss of the robot's state.

Any thread deposits changes of the connection, the tick thread too; the executor thread polls, some
times in a second, and writes. Repeats are throttled, see telemetry.log_throttle.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from lerobot_serve.edge.session.connection import (
    ConnectionChange,
    ConnectionState,
    ConnectionStatus,
    INITIAL_REASON,
)
from lerobot_serve.telemetry.log_throttle import Log, Logs, LogThrottle, PERIOD_S

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


# caused by an operator, or part of the normal work of a router
EXPECTED_REASONS = {'cleared_action', 'policy_changed'}
# below it nothing is logged: a gripper that closes on its limit
SHARE_MIN = 0.05
# a rate has changed when it is so many times the one that was logged
CHANGE = 2
# a state that flaps is fresh again after so long
FRESH_S = 5.0


class ProblemLog:
    """Counts are since start, by name."""

    def __init__(self, logs: Logs) -> None:
        self._logs, self._begin_ns = logs, logs.clock()
        # at the begin of the period
        self._counted: Counter[str] = Counter()
        self._steps = 0
        self._logged_counts: Counter[str] = Counter()
        self._logged_shares: dict[str, float] = {}

    def poll(self, counts: Counter[str], in_steps: Counter[str], steps: int) -> None:
        """
        `counts` are drops and failures, `in_steps` what may happen in each of the `steps`. A new
        kind of drop is logged at once, everything else once in a period.
        """
        counts = Counter({n: c for n, c in counts.items() if c and n not in EXPECTED_REASONS})
        new = {name: counts[name] for name in counts if name not in self._logged_counts}
        if new:
            self._logged_counts.update(new)
            self._counted.update(new)
            self._logs.warning(f'dropped or failed: {_listed(new)}')
        now_ns = self._logs.clock()
        if now_ns - self._begin_ns < 1e9 * PERIOD_S:
            return
        self._log_counts(counts - self._counted)
        if steps > self._steps:
            self._log_shares(in_steps, steps - self._steps)
        self._begin_ns, self._steps = now_ns, steps
        self._counted = counts + in_steps

    def _log_counts(self, passed: Counter[str]) -> None:
        changed = {}
        for name, logged in self._logged_counts.items():
            now = passed[name]
            if now >= CHANGE * logged:
                changed[name] = now
            if now >= CHANGE * logged or now * CHANGE <= logged:
                self._logged_counts[name] = max(1, now)
        if changed:
            text = f'dropped or failed in the last {PERIOD_S:g} s: {_listed(changed)}'
            self._logs.warning(text)

    def _log_shares(self, in_steps: Counter[str], steps: int) -> None:
        for name, count in sorted(in_steps.items()):
            share = (count - self._counted[name]) / steps
            logged = self._logged_shares.get(name, 0.0)
            if share < SHARE_MIN:
                if self._logged_shares.pop(name, 0.0):
                    self._logs.info(f'{name}: below {SHARE_MIN:.0%} of the control steps again')
            elif share >= CHANGE * logged or share * CHANGE <= logged:
                self._logged_shares[name] = share
                self._logs.warning(
                    f'{name}: {share:.0%} of the control steps of the last {PERIOD_S:g} s, '
                    f'{logged:.0%} before'
                )


class StateLog:
    """Logs that commands are held without a known state of the robot, and the end of that."""

    def __init__(self, logs: Logs) -> None:
        self._logs = logs
        self._held, self._held_ns = 0, 0
        # of the loss of now: when it began, and the commands held before it
        self._lost: tuple[int, int] | None = None

    def poll(self, unknown: str, last_unknown: str, held: int) -> None:
        """
        `unknown` is why the state is not known now, empty if it is, `last_unknown` why it was not
        the last time; `held` the commands that were held for it since start.
        """
        now_ns, before = self._logs.clock(), self._held
        if held > before:
            self._held, self._held_ns = held, now_ns
            if self._lost is None:
                self._lost = now_ns, before
                why = unknown or last_unknown
                self._logs.warning(
                    f'commands are held, the state of the robot is not known: {why}'
                )
        elif self._lost and not unknown and now_ns - self._held_ns >= 1e9 * FRESH_S:
            begin_ns, first = self._lost
            self._lost = None
            self._logs.info(
                f'the state of the robot is known again: {held - first} commands were held in '
                f'{(self._held_ns - begin_ns) / 1e9:.1f} s'
            )


def _listed(counts: Counter[str] | dict[str, int]) -> str:
    names: Iterable[str] = sorted(counts)
    return ', '.join(f'{name} {counts[name]}' for name in names)
