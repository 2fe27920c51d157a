# SPDX-License-Identifier: Apache-2.0
"""The connection's state machine: every pair of the table, and the events of time and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, pairwise, product
import threading

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule, RuleBasedStateMachine
import pytest
from support.edge.controller_rig import WAYS

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.connection import (
    Connection,
    ConnectionChange,
    ConnectionEvent,
    ConnectionState,
    ConnectionStatus,
    timer_event,
    TRANSITIONS,
    TransitionTable,
)
from lerobot_serve_interfaces.msg import EdgeState

S = 1_000_000_000


# rows are events, columns states; a dot means no change
TABLE = """
                 CONNECTING STREAMING    DEGRADED     STALLED      RECONNECTING DEAD
SESSION_OPENED   .          .            .            .            DEGRADED     .
CHUNK_MERGED     STREAMING  .            STREAMING    STREAMING    STREAMING    .
REQUEST_FAILED   .          DEGRADED     .            .            .            .
QUEUE_EMPTY      .          STALLED      STALLED      .            .            .
SESSION_LOST     .          RECONNECTING RECONNECTING RECONNECTING .            .
OFFLINE_TOO_LONG DEAD       .            .            .            DEAD         .
INCOMPATIBLE     .          .            .            .            DEAD         .
RESET            .          .            .            .            .            CONNECTING
"""


def drawn() -> dict[tuple[ConnectionState, ConnectionEvent], ConnectionState]:
    """Return the table: written a second time, no pair changes by mistake."""
    lines = [line.split() for line in TABLE.strip().splitlines()]
    assert len(lines) == 1 + len(ConnectionEvent)
    columns = [ConnectionState[name] for name in lines[0]]
    assert len({*columns}) == len(ConnectionState)
    return {
        (state, ConnectionEvent[row[0]]): ConnectionState[name]
        for row in lines[1:]
        for state, name in zip(columns, row[1:], strict=True)
        if name != '.'
    }


LEADS = drawn()
TELLS_WHY = {
    (state, event)
    for state in (ConnectionState.CONNECTING, ConnectionState.RECONNECTING)
    for event in (
        ConnectionEvent.SESSION_OPENED,
        ConnectionEvent.SESSION_LOST,
        ConnectionEvent.INCOMPATIBLE,
    )
}


class Clock:
    def __init__(self) -> None:
        self.now_ns = 7 * S

    def __call__(self) -> int:
        return self.now_ns


class Heard(Connection):
    """A connection, and the changes that it told."""

    def __init__(self, clock: Callable[[], int], table: TransitionTable = TRANSITIONS) -> None:
        self.changes: list[ConnectionChange] = []
        super().__init__(clock, table, self.changes.append)


def in_state(state: ConnectionState, clock: Clock | None = None) -> Heard:
    connection = Heard(clock or Clock())
    for event in WAYS[state]:
        connection.handle(event, f'by {event.name}')
    assert connection.state == state
    return connection


def test_the_states_are_those_of_the_message():
    for state in ConnectionState:
        assert getattr(EdgeState, state.name) == state
    assert len(ConnectionState) == 6


@pytest.mark.parametrize(('state', 'event'), product(ConnectionState, ConnectionEvent))
def test_a_pair_leads_where_it_is_said_to(state, event):
    clock = Clock()
    connection = in_state(state, clock)
    before, changes = connection.status, connection.changes.copy()
    clock.now_ns += S
    change = connection.handle(event, 'because')
    after = LEADS.get((state, event))
    if after:
        assert (change.before, change.event, change.after) == (state, event, after)
        assert (change.at_ns, change.reason) == (8 * S, 'because')
        assert connection.status == ConnectionStatus(after, 'because', 8 * S)
        assert connection.changes == [*changes, change]
    else:
        assert change is None
        told = 'because' if (state, event) in TELLS_WHY else before.reason
        assert connection.status == ConnectionStatus(state, told, before.since_ns)
        assert connection.changes == changes


def test_another_table_may_be_given():
    connection = Connection(
        Clock(), {(ConnectionState.CONNECTING, ConnectionEvent.QUEUE_EMPTY): ConnectionState.DEAD}
    )
    assert connection.handle(ConnectionEvent.CHUNK_MERGED, '') is None
    assert connection.handle(ConnectionEvent.QUEUE_EMPTY, '').after == ConnectionState.DEAD


def test_a_new_connection_waits_for_a_server():
    connection = Heard(Clock())
    assert (connection.state, connection.status.since_ns, connection.changes) == (1, 7 * S, [])
    assert connection.reason


# what time brings

TIMES = {'settings': EdgeParameters(degraded_after_s=1.0, max_offline_s=60.0)}


@pytest.mark.parametrize('state', ConnectionState)
@pytest.mark.parametrize('wanted_since_ns', [None, 0, 10 * S])
@pytest.mark.parametrize('now_ns', [10 * S, 11 * S - 1, 11 * S, 60 * S - 1, 60 * S])
def test_late_and_offline_are_due_at_their_bound_and_only_where_they_lead_on(
    state, wanted_since_ns, now_ns
):
    told = timer_event(
        ConnectionStatus(state, 'x', 0), now_ns, wanted_since_ns=wanted_since_ns, **TIMES
    )
    late = state == ConnectionState.STREAMING and wanted_since_ns is not None
    if late and now_ns - wanted_since_ns >= S:
        assert told == (ConnectionEvent.REQUEST_FAILED, 'no chunk for 1 s')
    elif state == ConnectionState.RECONNECTING and now_ns >= 60 * S:
        assert told == (ConnectionEvent.OFFLINE_TOO_LONG, 'no session for 60 s; x')
    else:
        assert told is None


def test_a_clock_that_stands_or_goes_back_brings_nothing():
    for state in (ConnectionState.STREAMING, ConnectionState.RECONNECTING):
        assert (
            timer_event(ConnectionStatus(state, '', 9 * S), 9 * S, wanted_since_ns=9 * S, **TIMES)
            is None
        )
        assert (
            timer_event(ConnectionStatus(state, '', 9 * S), 0, wanted_since_ns=9 * S, **TIMES)
            is None
        )


@pytest.mark.parametrize('state', ConnectionState)
@pytest.mark.parametrize('refused_since_ns', [None, 0, 10 * S])
@pytest.mark.parametrize('now_ns', [60 * S - 1, 60 * S, 70 * S - 1, 70 * S])
def test_a_robot_that_every_server_refuses_is_given_up_at_its_bound(
    state, refused_since_ns, now_ns
):
    standing = ConnectionStatus(state, 'arm_0.pos', 0)
    event = timer_event(
        standing, now_ns, wanted_since_ns=None, refused_since_ns=refused_since_ns, **TIMES
    )
    is_over = refused_since_ns is not None and now_ns - refused_since_ns >= 60 * S
    if state == ConnectionState.CONNECTING and is_over:
        assert event == (ConnectionEvent.OFFLINE_TOO_LONG, 'refused for 60 s; arm_0.pos')
    elif state != ConnectionState.RECONNECTING:
        assert event is None


def test_the_time_offline_counts_from_the_loss_whatever_servers_say_meanwhile():
    clock = Clock()
    connection = in_state(ConnectionState.RECONNECTING, clock)
    clock.now_ns += 59 * S
    connection.handle(ConnectionEvent.SESSION_LOST, '/b: full')
    assert connection.check_timers(wanted_since_ns=None, **TIMES) is None
    clock.now_ns += S
    change = connection.check_timers(wanted_since_ns=None, **TIMES)
    assert change.after == connection.state == ConnectionState.DEAD
    assert connection.reason == 'no session for 60 s; /b: full'


# the connection under any sequence of events, from any thread


class AnyEvents(RuleBasedStateMachine):
    """What must hold whatever happens."""

    @initialize()
    def begin(self):
        self.now_ns = 0
        self.connection = Heard(lambda: self.now_ns)
        self.heard = [(ConnectionState.CONNECTING, None)]
        self.had_chunk = False
        self.lost_since_ns = None

    def note(self, event, change, before):
        after = self.connection.state
        assert (change is None) == (after == before)
        if change:
            assert (change.before, change.after, change.at_ns) == (before, after, self.now_ns)
            assert self.connection.status.since_ns == self.now_ns
            assert self.connection.changes[-1] == change
        self.had_chunk |= (
            event == ConnectionEvent.CHUNK_MERGED and after == ConnectionState.STREAMING
        )
        if before == ConnectionState.DEAD:
            assert after == (
                ConnectionState.CONNECTING
                if event == ConnectionEvent.RESET
                else ConnectionState.DEAD
            )
        if after == ConnectionState.CONNECTING != before:
            assert before == ConnectionState.DEAD
            self.had_chunk = False
        if after == ConnectionState.STREAMING != before:
            assert event == ConnectionEvent.CHUNK_MERGED
        if after == ConnectionState.DEAD != before:
            is_refused = (
                before == ConnectionState.CONNECTING and event == ConnectionEvent.OFFLINE_TOO_LONG
            )
            assert before == ConnectionState.RECONNECTING or is_refused
            assert event in (ConnectionEvent.OFFLINE_TOO_LONG, ConnectionEvent.INCOMPATIBLE)
        if after == ConnectionState.RECONNECTING != before:
            self.lost_since_ns = self.now_ns
        # playing on and standing still are told apart only by DRY
        if after == ConnectionState.STALLED != before:
            assert event == ConnectionEvent.QUEUE_EMPTY

    @rule(event=st.sampled_from(ConnectionEvent), reason=st.text(max_size=3))
    def happen(self, event, reason):
        before = self.connection.state
        self.note(event, self.connection.handle(event, reason), before)

    @rule(step_ns=st.integers(0, 90 * S))
    def wait(self, step_ns):
        self.now_ns += step_ns

    @rule(wanted_ago_s=st.none() | st.floats(0, 5))
    def look_at_the_time(self, wanted_ago_s):
        before = self.connection.state
        wanted_ns = None if wanted_ago_s is None else self.now_ns - int(wanted_ago_s * S)
        change = self.connection.check_timers(wanted_since_ns=wanted_ns, **TIMES)
        if change is None:
            assert self.connection.state == before
            assert (
                before != ConnectionState.RECONNECTING or self.now_ns - self.lost_since_ns < 60 * S
            )
            return
        self.note(change.event, change, before)
        if change.event == ConnectionEvent.OFFLINE_TOO_LONG:
            assert self.now_ns - self.lost_since_ns >= 60 * S
        else:
            assert change.event == ConnectionEvent.REQUEST_FAILED
            assert wanted_ago_s >= 0.999

    @invariant()
    def without_a_chunk_there_is_no_way_on(self):
        if not self.had_chunk:
            assert self.connection.state in (ConnectionState.CONNECTING, ConnectionState.DEAD)

    @invariant()
    def what_is_told_is_in_order(self):
        changes = self.connection.changes
        for earlier, later in pairwise(changes):
            assert earlier.after == later.before
            assert earlier.at_ns <= later.at_ns
        assert not changes or changes[-1].after == self.connection.state


TestAnyEvents = AnyEvents.TestCase
TestAnyEvents.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


class Slow(dict):
    """A table in which somebody else tells something while the next state is looked up."""

    def get(self, pair):
        table, self.get = TRANSITIONS, TRANSITIONS.get
        other = threading.Thread(
            target=self.connection.handle, args=(ConnectionEvent.SESSION_LOST, 'gone')
        )
        other.start()
        # without the lock it would be through by now
        other.join(0.2)
        self.other = other
        return table.get(pair)


def test_what_two_threads_tell_happens_one_after_the_other():
    ticks = count()
    table = Slow()
    connection = table.connection = Heard(lambda: next(ticks), table)
    connection.handle(ConnectionEvent.CHUNK_MERGED, '')
    table.other.join(10)
    assert [(c.before, c.after) for c in connection.changes] == [
        (ConnectionState.CONNECTING, ConnectionState.STREAMING),
        (ConnectionState.STREAMING, ConnectionState.RECONNECTING),
    ]
