# SPDX-License-Identifier: Apache-2.0
"""What is under way: what is owed and when it is due; and nothing that grows."""

from __future__ import annotations

import gc

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.router.dispatch_rig import (
    ask_of,
    check_counts,
    episode_in,
    MS,
    Rig,
    SECOND,
    TIMEOUT_NS,
)
from support.router.recording_transport import RecordingTransport
from support.router.replica_rig import ControlRig

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.schema import MsgType, Status
from lerobot_serve.router.data_path.in_flight import (
    InFlightRequest,
    InFlightRequests,
    MIN_HEAP_TO_COMPACT,
    RequestPurpose,
)
from lerobot_serve.router.sessions.client_sessions import ClientSession

REQUESTS = 100_000


def flight_of(
    robot: ClientSession, seq: int, episode: int = 0, now_ns: int = 0
) -> InFlightRequest:
    header = Header(seq, 0, robot.request.session_epoch, episode, 1, MsgType.OBSERVATION)
    return InFlightRequest(robot, header, 'episode', b'raw', now_ns)


@pytest.fixture
def robot():
    return ClientSession(ask_of(), {}, 0)


@pytest.fixture
def flights():
    return InFlightRequests()


def begun(
    flights: InFlightRequests, robot: ClientSession, seq: int, **more: int
) -> InFlightRequest:
    flight = flight_of(robot, seq, **more)
    flights.begin(flight)
    return flight


def test_an_answer_to_an_earlier_one_gives_the_newest_its_own_time(flights, robot):
    flights.add_pending(begun(flights, robot, 1), '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    second = flights.add_pending(
        begun(flights, robot, 2), '/a', RequestPurpose.LIVE, 900 * MS, TIMEOUT_NS
    )
    assert flights.take_pending('/a', 'robot', 1, 1) is None
    assert flights.take_pending('/a', 'robot', 1, 1) is None
    assert list(flights.due(TIMEOUT_NS + 900 * MS - 1)) == []
    assert list(flights.due(TIMEOUT_NS + 900 * MS)) == [(second, True)]


def test_an_answer_of_another_session_changes_nothing(flights, robot):
    flights.add_pending(begun(flights, robot, 1), '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    assert flights.take_pending('/a', 'robot', 2, 1) is None
    assert flights.take_pending('/b', 'robot', 1, 1) is None
    assert flights.take_pending('/a', 'other', 1, 1) is None
    assert flights.take_pending('/a', 'robot', 1, 1)


def test_a_hedge_is_due_once_and_only_while_unanswered(flights, robot):
    asked = flights.add_pending(begun(flights, robot, 1), '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    flights.schedule_hedge(asked, 5 * MS)
    assert list(flights.due(5 * MS)) == [(asked, False)]
    assert list(flights.due(6 * MS)) == []
    flights.schedule_hedge(asked, 9 * MS)
    flights.take_pending('/a', 'robot', 1, 1)
    assert list(flights.due(SECOND)) == []


def test_who_may_still_answer_is_no_trial_and_no_earlier_request(flights, robot):
    first = begun(flights, robot, 1)
    flights.add_pending(first, '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    second = begun(flights, robot, 2)
    flights.add_pending(second, '/b', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    flights.add_pending(second, '/c', RequestPurpose.HEDGE, 0, TIMEOUT_NS)
    flights.add_pending(second, '/d', RequestPurpose.PROBE, 0, TIMEOUT_NS)
    assert sorted(flights.pending_servers(second)) == ['/b', '/c']
    assert [asked.request for asked in flights.pending_at('/a')] == [first]


def test_a_robot_that_is_gone_is_owed_nothing(flights, robot):
    flight = begun(flights, robot, 1)
    flights.add_pending(flight, '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    assert flights.forget('robot')
    assert not flights.forget('robot')
    assert (flight.is_done, flight.raw, len(flights)) == (True, b'', 0)
    assert list(flights.due(10 * SECOND)) == []


def test_an_episode_that_is_over_is_owed_nothing_and_the_new_one_is(flights, robot):
    old = begun(flights, robot, 1, episode=1)
    flights.add_pending(old, '/a', RequestPurpose.LIVE, 0, TIMEOUT_NS)
    assert not flights.forget_episodes_before('robot', 1)
    assert flights.forget_episodes_before('robot', 2)
    assert (old.is_done, flights.next_due_ns) == (True, None)
    new = begun(flights, robot, 2, episode=2)
    asked = flights.add_pending(new, '/a', RequestPurpose.LIVE, 900 * MS, TIMEOUT_NS)
    assert asked.since_ns == 900 * MS
    assert not flights.forget_episodes_before('robot', 2)
    assert not new.is_done
    assert not flights.forget_episodes_before('nobody', 2)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from('abc'), st.sampled_from('xy'), st.integers(0, 400), st.booleans()
        ),
        max_size=80,
    )
)
def test_every_question_is_answered_or_due_exactly_once(script):
    """Robots ask, servers answer the newest or not, time passes."""
    flights, now_ns = InFlightRequests(), 0
    robots = {name: ClientSession(ask_of(name), {}, 0) for name in 'abc'}
    owed: dict[tuple[str, str], int] = {}
    for seq, (name, server, wait_ms, answers) in enumerate(script, 1):
        flight = begun(flights, robots[name], seq, now_ns=now_ns)
        flights.add_pending(flight, server, RequestPurpose.LIVE, now_ns, TIMEOUT_NS)
        owed[server, name] = seq
        now_ns += wait_ms * MS
        for asked, overdue in flights.due(now_ns):
            assert overdue
            assert asked.due_ns <= now_ns
            assert owed.pop(asked.key) == asked.request.seq
        if answers and (server, name) in owed:
            assert flights.take_pending(server, name, 1, owed.pop((server, name)))
            assert flights.take_pending(server, name, 1, seq) is None
    due = [asked.key for asked, _ in flights.due(now_ns + TIMEOUT_NS)]
    assert sorted(due) == sorted(owed)
    assert flights.next_due_ns is None


# what is kept


def forgetful_rig(**more: object) -> Rig:
    return Rig(outside=RecordingTransport(capacity=4), **more)


def test_nothing_grows_with_the_number_of_requests():
    rig = forgetful_rig(capacity=50)
    clients = 20
    for number in range(clients):
        rig.robot(f'robot-{number}')
    largest = 0
    for number in range(REQUESTS // 25):
        name = f'robot-{number % clients}'
        raw = rig.request(name, f'episode-{number // 3}')
        # half is never answered, and no time passes for a while
        if number % 2:
            rig.answer(rig.outside.sent[-1][0], raw)
        if number % 400 == 0:
            rig.advance(20 * MS)
        largest = max(largest, rig.table.in_flight.size)
    assert largest <= MIN_HEAP_TO_COMPACT + 8 * clients * len(rig.replicas)
    assert len(rig.stats._episodes) <= 50
    assert len(rig.stats._awaiting_outcome) <= 50
    assert len(rig.stats._current_episodes) == clients
    assert len(rig.sticky) == 50


def test_nothing_grows_with_a_hundred_thousand_dues():
    flights, robots = InFlightRequests(), [ClientSession(ask_of(str(n)), {}, 0) for n in range(30)]
    largest = 0
    for seq in range(REQUESTS):
        robot = robots[seq % 30]
        flight = begun(flights, robot, seq)
        asked = flights.add_pending(flight, '/a', RequestPurpose.LIVE, seq, 60 * SECOND)
        flights.schedule_hedge(asked, seq + SECOND)
        if seq % 3:
            flights.take_pending('/a', robot.request.client_id, 1, seq)
        largest = max(largest, flights.size)
    assert largest <= MIN_HEAP_TO_COMPACT + 8 * 30


def test_nothing_grows_with_the_number_of_robots_that_came_and_went():
    rig = ControlRig(outside=RecordingTransport(capacity=4))
    try:
        for number in range(300):
            name = f'robot-{number}'
            rig.control.open(ask_of(name))
            rig.request(name, f'{name}-1')
            rig.control.close(name, 1)
        assert len(rig.robots) == 0
        assert rig.table.in_flight.size <= MIN_HEAP_TO_COMPACT
        assert rig.drop('session_over') == 300
        assert not rig.stats._current_episodes
        assert not any(client.sessions for client in rig.clients.values())
        check_counts(rig.slots, rig.robots)
    finally:
        rig.callers.close()


@pytest.mark.parametrize('how', ['answered', 'failed', 'superseded', 'overdue', 'unanswered'])
def test_the_bytes_of_a_request_are_let_go(how):
    rig = forgetful_rig()
    rig.robot()
    raw = rig.request(episode=episode_in('a'))
    rig.forget()
    rig.outside.heard.clear()
    flight = rig.table.in_flight.newest('robot')
    assert flight.raw is raw
    servers = flight.tried_servers
    if how == 'answered':
        rig.answer(*servers, raw)
    elif how == 'failed':
        rig.answer(*servers, raw, Status.BAD_OBSERVATION)
    elif how == 'superseded':
        rig.request(episode=episode_in('a'))
    elif how == 'overdue':
        for _ in range(4):
            rig.advance(TIMEOUT_NS)
    else:
        for server in rig.replicas:
            rig.set_available(server, False)
        rig.request(episode=episode_in('a'))
        flight = rig.table.in_flight.newest('robot')
    assert flight.is_done
    assert flight.raw == b''


def test_flights_that_ended_are_kept_by_nobody():
    rig = forgetful_rig()
    for name in 'abc':
        rig.robot(name)
    for number in range(300):
        rig.round_trip('abc'[number % 3], episode_in('a'))
    gc.collect()
    flights = [each for each in gc.get_objects() if type(each) is InFlightRequest]
    mine = list(rig.robots)
    kept = sum(any(flight.session is robot for robot in mine) for flight in flights)
    assert kept <= MIN_HEAP_TO_COMPACT + 10
