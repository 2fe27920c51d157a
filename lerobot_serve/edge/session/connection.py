# SPDX-License-Identifier: Apache-2.0
"""
The connection state machine: a transition table and the object that holds the current state.

REQUEST_FAILED: requests fail while the queue holds actions: a reply without actions, a timeout, or
a chunk that is missing for degraded_after_s.

CONNECTING has no time limit, because the robot may start before its server. If every server
rejects the robot permanently, OFFLINE_TOO_LONG follows after max_offline_s, which leaves the
operator time to fix it. After an open session a permanent rejection leads to DEAD at once. Only an
operator's reset leaves DEAD.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import auto, Enum
import threading

from lerobot_serve.contract.records import EdgeState
from lerobot_serve.edge.parameters import EdgeParameters

ConnectionState = EdgeState.State


class ConnectionEvent(Enum):
    """An event of the connection."""

    # a session was opened
    SESSION_OPENED = auto()
    # a chunk was merged into the queue
    CHUNK_MERGED = auto()
    # requests fail while the queue holds actions
    REQUEST_FAILED = auto()
    # the queue holds no fresh action
    QUEUE_EMPTY = auto()
    # the session or its server is lost
    SESSION_LOST = auto()
    # no session for max_offline_s after one existed, or every server rejects permanently
    OFFLINE_TOO_LONG = auto()
    # every server rejects this robot permanently
    INCOMPATIBLE = auto()
    # an operator started an episode
    RESET = auto()


TransitionTable = Mapping[tuple[ConnectionState, ConnectionEvent], ConnectionState]

CONNECTING, STREAMING, DEGRADED, STALLED, RECONNECTING, DEAD = ConnectionState
# what follows an event in which state; any other changes nothing
NEXT = {
    ConnectionEvent.SESSION_OPENED: {RECONNECTING: DEGRADED},
    ConnectionEvent.CHUNK_MERGED: dict.fromkeys(
        (CONNECTING, DEGRADED, STALLED, RECONNECTING), STREAMING
    ),
    ConnectionEvent.REQUEST_FAILED: {STREAMING: DEGRADED},
    ConnectionEvent.QUEUE_EMPTY: {STREAMING: STALLED, DEGRADED: STALLED},
    ConnectionEvent.SESSION_LOST: dict.fromkeys((STREAMING, DEGRADED, STALLED), RECONNECTING),
    ConnectionEvent.OFFLINE_TOO_LONG: {CONNECTING: DEAD, RECONNECTING: DEAD},
    ConnectionEvent.INCOMPATIBLE: {RECONNECTING: DEAD},
    ConnectionEvent.RESET: {DEAD: CONNECTING},
}
TRANSITIONS: TransitionTable = {
    (state, event): NEXT[event][state]
    for state in ConnectionState
    for event in ConnectionEvent
    if state in NEXT[event]
}

INITIAL_REASON = 'not connected yet'

# without a session these events update the reason even if the state stays
REASON_EVENTS = (
    ConnectionEvent.SESSION_OPENED,
    ConnectionEvent.SESSION_LOST,
    ConnectionEvent.INCOMPATIBLE,
)


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
    status: ConnectionStatus,
    now_ns: int,
    settings: EdgeParameters,
    *,
    wanted_since_ns: int | None,
    refused_since_ns: int | None = None,
) -> tuple[ConnectionEvent, str] | None:
    """
    Return the event that is due by time, with its reason.

    `wanted_since_ns`: since when the missing chunk is due. `refused_since_ns`: since when every
    server rejects this robot permanently. None: does not apply.
    """
    limit_s = settings.max_offline_s
    missing_ns = 0 if wanted_since_ns is None else now_ns - wanted_since_ns
    offline_ns = now_ns - status.since_ns
    # after a reset from DEAD the full time applies again
    refused_ns = 0 if refused_since_ns is None else min(now_ns - refused_since_ns, offline_ns)
    if status.state == STREAMING and missing_ns >= settings.degraded_after_s * 1e9:
        return ConnectionEvent.REQUEST_FAILED, f'no chunk for {settings.degraded_after_s:g} s'
    if status.state == RECONNECTING and offline_ns >= limit_s * 1e9:
        return ConnectionEvent.OFFLINE_TOO_LONG, f'no session for {limit_s:g} s; {status.reason}'
    if status.state == CONNECTING and refused_ns >= limit_s * 1e9:
        return ConnectionEvent.OFFLINE_TOO_LONG, f'refused for {limit_s:g} s; {status.reason}'
    return None


class Connection:
    """
    Holds the current state. Any thread. `on_change` receives each change, in order, in the thread
    that causes it; it must not block.
    """

    def __init__(
        self,
        clock: Callable[[], int],
        table: TransitionTable = TRANSITIONS,
        on_change: Callable[[ConnectionChange], None] = lambda _: None,
    ) -> None:
        self._clock, self._table, self._on_change = clock, table, on_change
        self._lock = threading.Lock()
        # replaced as a whole: readers need no lock
        self.status = ConnectionStatus(ConnectionState.CONNECTING, INITIAL_REASON, clock())

    @property
    def state(self) -> ConnectionState:
        return self.status.state

    @property
    def reason(self) -> str:
        return self.status.reason

    def handle(self, event: ConnectionEvent, reason: str) -> ConnectionChange | None:
        """Process an event; return the change, None if the state stays."""
        with self._lock:
            return self._handle(event, reason)

    def check_timers(
        self,
        settings: EdgeParameters,
        *,
        wanted_since_ns: int | None,
        refused_since_ns: int | None = None,
    ) -> ConnectionChange | None:
        """Process the event that is due by time, if any, atomically; see `timer_event`."""
        with self._lock:
            due = timer_event(
                self.status,
                self._clock(),
                settings,
                wanted_since_ns=wanted_since_ns,
                refused_since_ns=refused_since_ns,
            )
            return self._handle(*due) if due else None

    def _handle(self, event: ConnectionEvent, reason: str) -> ConnectionChange | None:
        before = self.status
        after = self._table.get((before.state, event))
        if after is None:
            if before.state in (CONNECTING, RECONNECTING) and event in REASON_EVENTS:
                self.status = ConnectionStatus(before.state, reason, before.since_ns)
            return None
        change = ConnectionChange(self._clock(), before.state, event, after, reason)
        self.status = ConnectionStatus(after, reason, change.at_ns)
        self._on_change(change)
        return change
