"""The connection's state machine: every pair of the table, and the events of time and refusals."""

from __future__ import annotations

from itertools import product

import pytest

from lerobot_serve.edge import states
from lerobot_serve.edge.states import Connection, due, Event, MEANS, NEXT, Standing, State
from lerobot_serve.wire.schema import Refusal
from lerobot_serve_interfaces.msg import EdgeState

S = 1_000_000_000
# written a second time, so that no pair changes by mistake
STAYS = {
    State.CONNECTING: 'OPENED LATE DRY LOST VIOLATION REVIVED',
    State.STREAMING: 'OPENED MERGED OFFLINE VIOLATION REVIVED',
    State.DEGRADED: 'OPENED LATE OFFLINE VIOLATION REVIVED',
    State.STALLED: 'OPENED LATE DRY OFFLINE VIOLATION REVIVED',
    State.RECONNECTING: 'LATE DRY LOST REVIVED',
    State.DEAD: 'OPENED MERGED LATE DRY LOST OFFLINE VIOLATION',
}
LEADS = {
    State.CONNECTING: {'MERGED': State.STREAMING, 'OFFLINE': State.DEAD},
    State.STREAMING: {
        'LATE': State.DEGRADED,
        'DRY': State.STALLED,
        'LOST': State.RECONNECTING,
    },
    State.DEGRADED: {
        'MERGED': State.STREAMING,
        'DRY': State.STALLED,
        'LOST': State.RECONNECTING,
    },
    State.STALLED: {'MERGED': State.STREAMING, 'LOST': State.RECONNECTING},
    State.RECONNECTING: {
        'OPENED': State.DEGRADED,
        'MERGED': State.STREAMING,
        'OFFLINE': State.DEAD,
        'VIOLATION': State.DEAD,
    },
    State.DEAD: {'REVIVED': State.CONNECTING},
}
TO = {
    State.CONNECTING: (),
    State.STREAMING: (Event.MERGED,),
    State.DEGRADED: (Event.MERGED, Event.LATE),
    State.STALLED: (Event.MERGED, Event.DRY),
    State.RECONNECTING: (Event.MERGED, Event.LOST),
    State.DEAD: (Event.MERGED, Event.LOST, Event.OFFLINE),
}
TELLS_WHY = {
    (state, event)
    for state in (State.CONNECTING, State.RECONNECTING)
    for event in (Event.OPENED, Event.LOST, Event.VIOLATION)
}


class Clock:
    def __init__(self) -> None:
        self.now_ns = 7 * S

    def __call__(self) -> int:
        return self.now_ns


def in_state(state: State, clock: Clock | None = None) -> Connection:
    connection = Connection(clock or Clock())
    for event in TO[state]:
        connection.on(event, f'by {event.name}')
    assert connection.state == state
    return connection


def test_the_states_are_those_of_the_message():
    for state in State:
        assert getattr(EdgeState, state.name) == state
    assert len(State) == 6


def test_every_pair_is_listed_once():
    listed = [(state, name) for state, names in STAYS.items() for name in names.split()]
    listed += [(state, name) for state, names in LEADS.items() for name in names]
    assert sorted(listed) == sorted((s, e.name) for s, e in product(State, Event))


@pytest.mark.parametrize(('state', 'event'), product(State, Event))
def test_a_pair_leads_where_it_is_said_to(state, event):
    clock = Clock()
    connection = in_state(state, clock)
    before, changes = connection.standing, connection.changes
    clock.now_ns += S
    change = connection.on(event, 'because')
    after = LEADS[state].get(event.name)
    if after:
        assert (change.before, change.event, change.after) == (state, event, after)
        assert (change.at_ns, change.reason) == (8 * S, 'because')
        assert connection.standing == Standing(after, 'because', 8 * S)
        assert connection.changes == (*changes, change)
    else:
        assert change is None
        told = 'because' if (state, event) in TELLS_WHY else before.reason
        assert connection.standing == Standing(state, told, before.since_ns)
        assert connection.changes == changes


def test_the_picture_is_the_table():
    lines = [line.split() for line in states.__doc__.splitlines() if line.startswith('    ')]
    events = [Event[name] for name in lines[0]]
    drawn = {
        (State[row[0]], event): State[name]
        for row in lines[1:]
        for event, name in zip(events, row[1:], strict=True)
        if name != '.'
    }
    assert len(lines) == 1 + len(State)
    assert drawn == NEXT


def test_another_table_may_be_given():
    connection = Connection(Clock(), {(State.CONNECTING, Event.DRY): State.DEAD})
    assert connection.on(Event.MERGED, '') is None
    assert connection.on(Event.DRY, '').after == State.DEAD


def test_a_new_connection_waits_for_a_server():
    connection = Connection(Clock())
    assert (connection.state, connection.since_ns, connection.changes) == (1, 7 * S, ())
    assert connection.reason


def test_only_the_latest_changes_are_kept():
    connection = in_state(State.STREAMING)
    for number in range(states.CHANGES_KEPT):
        connection.on(Event.LATE, f'late {number}')
        connection.on(Event.MERGED, '')
    assert len(connection.changes) == states.CHANGES_KEPT
    assert connection.changes[-2].reason == f'late {states.CHANGES_KEPT - 1}'


# what time brings

TIMES = {'degraded_after_s': 1.0, 'max_offline_s': 60.0}


@pytest.mark.parametrize('state', State)
@pytest.mark.parametrize('wanted_since_ns', [None, 0, 10 * S])
@pytest.mark.parametrize('now_ns', [10 * S, 11 * S - 1, 11 * S, 60 * S - 1, 60 * S])
def test_late_and_offline_are_due_at_their_bound_and_only_where_they_lead_on(
    state, wanted_since_ns, now_ns
):
    told = due(Standing(state, 'x', 0), now_ns, wanted_since_ns=wanted_since_ns, **TIMES)
    late = state == State.STREAMING and wanted_since_ns is not None
    if late and now_ns - wanted_since_ns >= S:
        assert told == (Event.LATE, 'no chunk for 1 s')
    elif state == State.RECONNECTING and now_ns >= 60 * S:
        assert told == (Event.OFFLINE, 'no session for 60 s; x')
    else:
        assert told is None


def test_a_clock_that_stands_or_goes_back_brings_nothing():
    for state in (State.STREAMING, State.RECONNECTING):
        assert due(Standing(state, '', 9 * S), 9 * S, wanted_since_ns=9 * S, **TIMES) is None
        assert due(Standing(state, '', 9 * S), 0, wanted_since_ns=9 * S, **TIMES) is None


@pytest.mark.parametrize('state', State)
@pytest.mark.parametrize('refused_since_ns', [None, 0, 10 * S])
@pytest.mark.parametrize('now_ns', [60 * S - 1, 60 * S, 70 * S - 1, 70 * S])
def test_a_robot_that_every_server_refuses_is_given_up_at_its_bound(
    state, refused_since_ns, now_ns
):
    standing = Standing(state, 'arm_0.pos', 0)
    event = due(standing, now_ns, wanted_since_ns=None, refused_since_ns=refused_since_ns, **TIMES)
    is_over = refused_since_ns is not None and now_ns - refused_since_ns >= 60 * S
    if state == State.CONNECTING and is_over:
        assert event == (Event.OFFLINE, 'refused for 60 s; arm_0.pos')
    elif state != State.RECONNECTING:
        assert event is None


def test_a_robot_that_never_had_a_session_waits_for_ever():
    clock = Clock()
    for state in (State.CONNECTING, State.DEAD):
        connection = in_state(state, clock)
        clock.now_ns += 10**9 * S
        assert connection.check_timers(wanted_since_ns=0, **TIMES) is None
        assert connection.state == state


def test_the_time_offline_counts_from_the_loss_whatever_servers_say_meanwhile():
    clock = Clock()
    connection = in_state(State.RECONNECTING, clock)
    clock.now_ns += 59 * S
    connection.on(Event.LOST, '/b: full')
    assert connection.check_timers(wanted_since_ns=None, **TIMES) is None
    clock.now_ns += S
    change = connection.check_timers(wanted_since_ns=None, **TIMES)
    assert change.after == connection.state == State.DEAD
    assert connection.reason == 'no session for 60 s; /b: full'


def test_a_session_in_between_starts_the_time_anew():
    clock = Clock()
    connection = in_state(State.RECONNECTING, clock)
    clock.now_ns += 59 * S
    connection.on(Event.OPENED, '')
    connection.on(Event.LOST, '')
    clock.now_ns += 59 * S
    assert connection.check_timers(wanted_since_ns=None, **TIMES) is None
    assert connection.state == State.RECONNECTING


def test_a_late_chunk_degrades_once():
    clock = Clock()
    connection = in_state(State.STREAMING, clock)
    wanted_since_ns = clock.now_ns
    clock.now_ns += S
    assert connection.check_timers(wanted_since_ns=None, **TIMES) is None
    change = connection.check_timers(wanted_since_ns=wanted_since_ns, **TIMES)
    assert change.after == State.DEGRADED
    assert connection.check_timers(wanted_since_ns=wanted_since_ns, **TIMES) is None


# what refusals mean

ASK_AGAIN = {
    Refusal.CAPACITY,
    Refusal.NAME_IN_USE,
    Refusal.NOT_READY,
    Refusal.DRAINING,
    Refusal.EXCLUSIVE_IN_USE,
    Refusal.UNREACHABLE,
}


@pytest.mark.parametrize('refusal', Refusal)
def test_a_refusal_is_for_later_or_for_good(refusal):
    if refusal == Refusal.OK:
        assert refusal not in MEANS
    else:
        assert MEANS[refusal] == (Event.LOST if refusal in ASK_AGAIN else Event.VIOLATION)


@pytest.mark.parametrize('refusal', [refusal for refusal in Refusal if refusal])
def test_a_first_server_that_refuses_is_told_and_asked_again(refusal):
    connection = in_state(State.CONNECTING)
    assert connection.on(MEANS[refusal], 'not this robot') is None
    assert (connection.state, connection.reason) == (State.CONNECTING, 'not this robot')


@pytest.mark.parametrize('refusal', [refusal for refusal in Refusal if refusal])
def test_on_reconnect_a_violation_is_the_end_and_the_rest_is_not(refusal):
    connection = in_state(State.RECONNECTING)
    connection.on(MEANS[refusal], 'refused')
    dead = refusal not in ASK_AGAIN
    assert connection.state == (State.DEAD if dead else State.RECONNECTING)
    assert connection.reason == 'refused'
