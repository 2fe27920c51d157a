"""
The connection's state machine: one table, and the object that keeps the present state.

A row is a state, a column an event, a dot means that nothing changes:

                 OPENED   MERGED    LATE     DRY     LOST         OFFLINE VIOLATION REVIVED
    CONNECTING   .        STREAMING .        .       .            DEAD    .         .
    STREAMING    .        .         DEGRADED STALLED RECONNECTING .       .         .
    DEGRADED     .        STREAMING .        STALLED RECONNECTING .       .         .
    STALLED      .        STREAMING .        .       RECONNECTING .       .         .
    RECONNECTING DEGRADED STREAMING .        .       .            DEAD    DEAD      .
    DEAD         .        .         .        .       .            .       .         CONNECTING

LATE means that requests fail while actions remain: an answer without actions, no answer in time,
or a chunk that has been missing for degraded_after_s.

A robot in CONNECTING waits for a server without limit, since it may be switched on before it. But
when every server refuses it for a reason that no waiting changes, OFFLINE is due max_offline_s
later: the operator may have mended it by then. Once a session was open, such a server is another
one than the robot began its work with, and the robot is given up at once. From DEAD only a person
leads out.
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
    """What happens to a connection."""

    # a session was opened
    OPENED = auto()
    # a chunk was accepted
    MERGED = auto()
    # requests fail, and there are actions left
    LATE = auto()
    # nothing fresh is left to play
    DRY = auto()
    # the session or its server is gone
    LOST = auto()
    # for max_offline_s there was no session after one, or every server refused for good
    OFFLINE = auto()
    # a server refuses what no waiting will change
    VIOLATION = auto()
    # somebody has looked at it
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

# while there is no session, these say why even when they change nothing
REASON_UPDATES = {
    (state, event)
    for state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
    for event in (ConnectionEvent.OPENED, ConnectionEvent.LOST, ConnectionEvent.VIOLATION)
}

# what a refusal means: VIOLATION when asking again would be refused again, LOST when later or
# another server may accept
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
    """A state, why, and since when."""

    state: ConnectionState
    reason: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class ConnectionChange:
    """One step from state to state, for the trace."""

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
    Return the event that the passing of time has brought, and its reason.

    `wanted_since_ns` is when the chunk that is missing was first wanted, `refused_since_ns` since
    when every server refuses this robot for good; None while that is not so.
    """
    missing_ns = 0 if wanted_since_ns is None else now_ns - wanted_since_ns
    offline_ns = now_ns - standing.since_ns
    # a robot that was given up and revived gets the whole time again
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
    Keeps the present state. Any thread. `tell` is given each change, in their order, by whoever
    brings it about; it must not wait.
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
        # replaced as a whole, so that it is read without the lock
        self.standing = ConnectionStatus(
            ConnectionState.CONNECTING, 'no server was asked yet', clock()
        )

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
        """Take an event; return the change, None when the state stays."""
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
        """Take the event that is due by now, if any, in one go with finding it; see `due`."""
        with self._lock:
            told = timer_event(
                self.standing,
                self._clock(),
                wanted_since_ns=wanted_since_ns,
                refused_since_ns=refused_since_ns,
                degraded_after_s=degraded_after_s,
                max_offline_s=max_offline_s,
            )
            return self._on(*told) if told else None

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
