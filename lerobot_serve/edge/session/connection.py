# SPDX-License-Identifier: Apache-2.0
"""
The connection state machine: a transition table and the object that holds the current state.

Rows are states, columns events; a dot means no change:

                 OPENED   MERGED    LATE     DRY     LOST         OFFLINE VIOLATION REVIVED
    CONNECTING   .        STREAMING .        .       .            DEAD    .         .
    STREAMING    .        .         DEGRADED STALLED RECONNECTING .       .         .
    DEGRADED     .        STREAMING .        STALLED RECONNECTING .       .         .
    STALLED      .        STREAMING .        .       RECONNECTING .       .         .
    RECONNECTING DEGRADED STREAMING .        .       .            DEAD    DEAD      .
    DEAD         .        .         .        .       .            .       .         CONNECTING

LATE: requests fail while the queue holds actions: a reply without actions, a timeout, or a chunk
that is missing for degraded_after_s.

CONNECTING has no time limit, because the robot may start before its server. If every server
rejects the robot permanently, OFFLINE follows after max_offline_s, which leaves the operator time
to fix it. After an open session a permanent rejection leads to DEAD at once. Only an operator's
reset leaves DEAD.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import auto, Enum, IntEnum
import threading

from lerobot_serve.wire.schema import Refusal

MAX_CHANGES_KEPT = 256


class ConnectionState(IntEnum):
    """EdgeState.state."""

    CONNECTING = 1
    STREAMING = 2
    DEGRADED = 3
    STALLED = 4
    RECONNECTING = 5
    DEAD = 6


class ConnectionEvent(Enum):
    """An event of the connection."""

    # a session was opened
    OPENED = auto()
    # a chunk was merged into the queue
    MERGED = auto()
    # requests fail while the queue holds actions
    LATE = auto()
    # the queue holds no fresh action
    DRY = auto()
    # the session or its server is lost
    LOST = auto()
    # no session for max_offline_s after one existed, or every server rejects permanently
    OFFLINE = auto()
    # every server rejects this robot permanently
    VIOLATION = auto()
    # an operator started an episode
    REVIVED = auto()


TransitionTable = Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState]

TRANSITIONS: TransitionTable = {
    (ConnectionState.CONNECTING, ConnectionEvent.MERGED): ConnectionState.STREAMING,
    (ConnectionState.CONNECTING, ConnectionEvent.OFFLINE): ConnectionState.DEAD,
    (ConnectionState.STREAMING, ConnectionEvent.LATE): ConnectionState.DEGRADED,
    (ConnectionState.STREAMING, ConnectionEvent.DRY): ConnectionState.STALLED,
    (ConnectionState.STREAMING, ConnectionEvent.LOST): ConnectionState.RECONNECTING,
    (ConnectionState.DEGRADED, ConnectionEvent.MERGED): ConnectionState.STREAMING,
    (ConnectionState.DEGRADED, ConnectionEvent.DRY): ConnectionState.STALLED,
    (ConnectionState.DEGRADED, ConnectionEvent.LOST): ConnectionState.RECONNECTING,
    (ConnectionState.STALLED, ConnectionEvent.MERGED): ConnectionState.STREAMING,
    (ConnectionState.STALLED, ConnectionEvent.LOST): ConnectionState.RECONNECTING,
    (ConnectionState.RECONNECTING, ConnectionEvent.OPENED): ConnectionState.DEGRADED,
    (ConnectionState.RECONNECTING, ConnectionEvent.MERGED): ConnectionState.STREAMING,
    (ConnectionState.RECONNECTING, ConnectionEvent.OFFLINE): ConnectionState.DEAD,
    (ConnectionState.RECONNECTING, ConnectionEvent.VIOLATION): ConnectionState.DEAD,
    (ConnectionState.DEAD, ConnectionEvent.REVIVED): ConnectionState.CONNECTING,
}

# without a session these events update the reason even if the state stays
REASON_UPDATES = {
    (state, event)
    for state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
    for event in (ConnectionEvent.OPENED, ConnectionEvent.LOST, ConnectionEvent.VIOLATION)
}

# VIOLATION: a retry would be refused again; LOST: a retry or another server may succeed
REFUSAL_EVENTS = {
    Refusal.SCHEMA_TOO_NEW: ConnectionEvent.VIOLATION,
    Refusal.SCHEMA_TOO_OLD: ConnectionEvent.VIOLATION,
    Refusal.BAD_NAME: ConnectionEvent.VIOLATION,
    Refusal.ACTION_NAMES: ConnectionEvent.VIOLATION,
    Refusal.STATE_NAMES: ConnectionEvent.VIOLATION,
    Refusal.CAMERAS: ConnectionEvent.VIOLATION,
    Refusal.FPS: ConnectionEvent.VIOLATION,
    Refusal.TASK_PINNED: ConnectionEvent.VIOLATION,
    Refusal.WRONG_POLICY: ConnectionEvent.VIOLATION,
    Refusal.CODEC: ConnectionEvent.VIOLATION,
    Refusal.BAD_REQUEST: ConnectionEvent.VIOLATION,
    Refusal.CAPACITY: ConnectionEvent.LOST,
    Refusal.NAME_IN_USE: ConnectionEvent.LOST,
    Refusal.NOT_READY: ConnectionEvent.LOST,
    Refusal.DRAINING: ConnectionEvent.LOST,
    Refusal.EXCLUSIVE_IN_USE: ConnectionEvent.LOST,
    Refusal.UNREACHABLE: ConnectionEvent.LOST,
}


@dataclass(frozen=True, slots=True)
class ConnectionStatus:
    """The state, its reason, and its start."""

    state: ConnectionState
    reason: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class ConnectionChange:
    """A state transition, for the trace."""

    at_ns: int
    before: ConnectionState
    event: ConnectionEvent
    after: ConnectionState
    reason: str


def timer_event(
    standing: ConnectionStatus,
    now_ns: int,
    *,
    wanted_since_ns: int | None,
    refused_since_ns: int | None = None,
    degraded_after_s: float,
    max_offline_s: float,
) -> tuple[ConnectionEvent, str] | None:
    """
    Return the event that is due by time, with its reason.

    `wanted_since_ns`: since when the missing chunk is due. `refused_since_ns`: since when every
    server rejects this robot permanently. None: does not apply.
    """
    missing_ns = 0 if wanted_since_ns is None else now_ns - wanted_since_ns
    offline_ns = now_ns - standing.since_ns
    # after a reset from DEAD the full time applies again
    refused_ns = 0 if refused_since_ns is None else min(now_ns - refused_since_ns, offline_ns)
    if standing.state == ConnectionState.STREAMING and missing_ns >= degraded_after_s * 1e9:
        return ConnectionEvent.LATE, f'no chunk for {degraded_after_s:g} s'
    if standing.state == ConnectionState.RECONNECTING and offline_ns >= max_offline_s * 1e9:
        return ConnectionEvent.OFFLINE, f'no session for {max_offline_s:g} s; {standing.reason}'
    if standing.state == ConnectionState.CONNECTING and refused_ns >= max_offline_s * 1e9:
        return ConnectionEvent.OFFLINE, f'refused for {max_offline_s:g} s; {standing.reason}'
    return None


class Connection:
    """
    Holds the current state. Any thread. `tell` receives each change, in order, in the thread that
    causes it; it must not block.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        table: TransitionTable = TRANSITIONS,
        tell: Callable[[ConnectionChange], None] = lambda _: None,
    ) -> None:
        self._clock, self._table, self._tell = clock, table, tell
        self._lock = threading.Lock()
        self._changes: deque[ConnectionChange] = deque(maxlen=MAX_CHANGES_KEPT)
        # replaced as a whole: readers need no lock
        self.standing = ConnectionStatus(ConnectionState.CONNECTING, 'not connected yet', clock())

    @property
    def state(self) -> ConnectionState:
        return self.standing.state

    @property
    def reason(self) -> str:
        return self.standing.reason

    @property
    def since_ns(self) -> int:
        return self.standing.since_ns

    @property
    def changes(self) -> tuple[ConnectionChange, ...]:
        """The latest changes, oldest first."""
        with self._lock:
            return tuple(self._changes)

    def on(self, event: ConnectionEvent, reason: str) -> ConnectionChange | None:
        """Process an event; return the change, None if the state stays."""
        with self._lock:
            return self._on(event, reason)

    def check_timers(
        self,
        *,
        wanted_since_ns: int | None,
        refused_since_ns: int | None = None,
        degraded_after_s: float,
        max_offline_s: float,
    ) -> ConnectionChange | None:
        """Process the event that is due by time, if any, atomically; see `timer_event`."""
        with self._lock:
            due = timer_event(
                self.standing,
                self._clock(),
                wanted_since_ns=wanted_since_ns,
                refused_since_ns=refused_since_ns,
                degraded_after_s=degraded_after_s,
                max_offline_s=max_offline_s,
            )
            return self._on(*due) if due else None

    def _on(self, event: ConnectionEvent, reason: str) -> ConnectionChange | None:
        before = self.standing
        after = self._table.get((before.state, event))
        if after is None:
            if (before.state, event) in REASON_UPDATES:
                self.standing = ConnectionStatus(before.state, reason, before.since_ns)
            return None
        change = ConnectionChange(self._clock(), before.state, event, after, reason)
        self.standing = ConnectionStatus(after, reason, change.at_ns)
        self._changes.append(change)
        self._tell(change)
        return change
