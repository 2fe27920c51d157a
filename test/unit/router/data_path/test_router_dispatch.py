# SPDX-License-Identifier: Apache-2.0
"""One request and its answer: whom it goes to, what counts, and what the robot is told."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import (
    answer_bytes,
    episode_in,
    MS,
    request_bytes,
    Rig,
    SECOND,
    SLOTS,
    TIMEOUT_NS,
)

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.schema import Status
from lerobot_serve.trace.format.records import RequestRecord

PROD = {'prod': ('/p1', '/p2')}
ALONE = {'prod': ('/p1',)}


@pytest.fixture
def rig():
    return Rig(robot='robot')


def prod(slots=PROD, **more) -> Rig:
    return Rig(slots, **more, robot='robot')


def test_a_request_goes_on_unread_and_its_answer_comes_back_unread(rig):
    raw = rig.request(episode=episode_in('a'))
    ((server, sent),) = rig.outside.sent
    assert sent is raw
    assert server in SLOTS['a']
    rig.now_ns += 30 * MS
    answer = answer_bytes(raw, policy='a@1')
    rig.dispatcher.on_reply(server, answer, rig.now_ns)
    ((robot, told),) = rig.outside.replies
    assert told is answer
    assert robot is rig.robots.current('robot')
    ((flight, by, peeked),) = rig.outside.served_by
    assert (flight.seq, by, peeked.policy, flight.raw) == (1, server, 'a@1', b'')
    assert rig.drops.counts() == {}
    stats = rig.stats.slot('a')
    assert (stats.requests, stats.chunks, stats.episodes) == (1, 1, 1)


def test_each_slot_gets_its_episodes(rig):
    for slot in 'ab':
        rig.request(episode=episode_in(slot))
    assert [server[1] for server in rig.servers] == ['a', 'b']
    assert [placement.slot for _, _, placement in rig.outside.decisions] == ['a', 'b']


def test_a_stranger_and_an_older_session_are_counted_and_go_nowhere(rig):
    rig.request('stranger')
    rig.request('robot', epoch=7)
    assert rig.drop('no_session') == 2
    assert rig.servers == []
    assert len(rig.table.in_flight) == 0
    assert list(rig.outside.unknown) == [('stranger', 1), ('robot', 7)]


def test_a_stranger_gets_few_replies_and_a_reply_gets_none(rig):
    for _ in range(5):
        rig.request('stranger')
    rig.dispatcher.on_request(answer_bytes(request_bytes('other', 1, 'e')), rig.now_ns)
    assert list(rig.outside.unknown) == [('stranger', 1)]
    rig.now_ns += 10**9
    rig.request('stranger')
    assert len(rig.outside.unknown) == 2
    # a robot with a session gets its reply, and no other
    rig.request('robot')
    assert len(rig.outside.unknown) == 2


def test_a_router_that_drains_refuses_strangers_too(rig):
    rig.dispatcher.refuse(request_bytes('stranger', 1, 'e'), rig.now_ns)
    assert list(rig.outside.unknown) == [('stranger', 1)]
    assert list(rig.outside.failures) == []
    assert rig.drops.counts() == {'no_session': 1}


@pytest.mark.parametrize(
    'raw', [b'', b'\x00\x01\x00\x00', b'\xff' * 64, answer_bytes(request_bytes('robot', 1, 'e'))]
)
def test_bytes_that_are_no_request_are_counted(rig, raw):
    rig.dispatcher.on_request(raw, rig.now_ns)
    assert sum(rig.drops.counts().values()) == 1
    assert rig.servers == []


@pytest.mark.parametrize('raw', [b'', b'\xff' * 64, request_bytes('robot', 1, 'e')])
def test_bytes_that_are_no_answer_are_counted_and_the_answer_is_still_waited_for(rig, raw):
    request = rig.request(episode=episode_in('a'))
    rig.dispatcher.on_reply('/a1', raw, rig.now_ns)
    assert sum(rig.drops.counts().values()) == 1
    rig.answer('/a1', request)
    assert len(rig.replies) == 1


def test_a_newer_request_takes_the_place_of_an_older_one(rig):
    episode = episode_in('a')
    old, new = rig.request(episode=episode), rig.request(episode=episode)
    assert rig.drop('superseded') == 1
    rig.answer('/a1', old)
    assert (rig.replies, rig.drop('late_reply')) == ([], 1)
    rig.answer('/a1', new)
    assert [seq for seq, _, _ in rig.replies] == [2]
    rig.answer('/a1', new)
    assert (rig.replies, rig.drop('late_reply')) == ([], 2)


def test_an_answer_of_an_older_session_is_late(rig):
    old = rig.request(episode=episode_in('a'))
    rig.robot(epoch=2)
    new = rig.request(episode=episode_in('a'), epoch=2)
    rig.answer('/a1', old)
    assert rig.replies == []
    rig.answer('/a1', new)
    assert len(rig.replies) == 1


def test_who_was_not_asked_has_nothing_to_say(rig):
    raw = rig.request(episode=episode_in('a'))
    (asked,) = rig.servers
    other = next(server for server in SLOTS['a'] if server != asked)
    rig.answer(other, raw)
    rig.answer('/b1', raw)
    assert (rig.replies, rig.drop('late_reply')) == ([], 2)


def test_where_nobody_can_answer_the_robot_is_told_at_once():
    rig = prod()
    for server in PROD['prod']:
        rig.set_available(server, False)
    rig.request()
    (text,) = rig.texts
    assert 'no eligible slot (slot prod: /p1: server unavailable' in text
    # `diagnose` knows it by this text
    assert RequestRecord(reason=text).is_from_silent_server
    assert rig.drop('unanswered') == 1
    assert len(rig.table.in_flight) == 0


def test_a_policy_of_nobody_and_no_other_slot_is_no_answer():
    rig = prod(ALONE)
    raw = rig.request()
    rig.answer('/p1', raw, policy='other@1')
    assert rig.replies == []
    assert len(rig.texts) == 1


def test_an_answer_that_never_comes_is_counted_and_another_asked_meanwhile():
    rig = prod()
    raw = rig.request()
    (first,) = rig.servers
    rig.advance(TIMEOUT_NS)
    (second,) = rig.servers
    assert first != second
    rig.advance(TIMEOUT_NS)
    assert (rig.servers, rig.drop('timeout'), rig.drop('failed_over')) == ([], 1, 1)
    # the robot does not wait for its own time limit
    ((_, status, text),) = rig.outside.failures
    assert (status, 'slot prod: no reply within 1 s' in text) == (Status.NO_SLOT, True)
    assert RequestRecord(reason=text).is_from_silent_server
    rig.answer(second, raw)
    assert (rig.replies, rig.drop('late_reply')) == ([], 1)
    assert rig.stats.slot('prod').failed == {'timeout': 1}


def test_the_time_of_an_answer_begins_anew_when_the_server_was_busy_with_an_earlier_one():
    rig = prod(ALONE)
    old = rig.request()
    rig.advance(600 * MS)
    new = rig.request()
    rig.advance(300 * MS)
    rig.answer('/p1', old)
    rig.advance(600 * MS)
    assert rig.drop('timeout') == 0
    rig.answer('/p1', new)
    assert [seq for seq, _, _ in rig.replies] == [2]
    assert rig.replicas['/p1'].health.failures == 0


def test_an_answer_that_never_comes_of_a_slot_that_is_gone_ends_the_session():
    """The robot goes to the next server of its list."""
    rig = prod(ALONE)
    rig.request()
    rig.set_available('/p1', False)
    rig.forget()
    rig.advance(TIMEOUT_NS)
    ((_, status, _),) = rig.outside.failures
    assert (status, rig.drop('timeout')) == (Status.NO_SESSION, 1)


def test_who_asks_ever_again_does_not_hide_that_nobody_answers():
    rig = prod(ALONE)
    for _ in range(5):
        rig.request()
        rig.advance(400 * MS)
    assert rig.replicas['/p1'].health.failures == 1
    assert rig.drop('timeout') == 1


def test_one_that_always_answers_the_request_before_is_not_waited_for_for_ever():
    rig = prod(ALONE)
    before = rig.request()
    for _ in range(10):
        raw = rig.request()
        rig.advance(900 * MS)
        rig.answer('/p1', before)
        before = raw
    rig.advance(TIMEOUT_NS)
    assert rig.drop('timeout') > 0
    assert rig.replies == []
    assert not rig.replicas['/p1'].is_ready


def test_the_alarm_is_woken_only_for_what_is_due_earlier_than_it_knows():
    rig = prod(ALONE)
    first = rig.request()
    assert rig.outside.wakes == 1
    due_ns = rig.dispatcher.on_timer(rig.now_ns)
    assert due_ns == rig.now_ns + TIMEOUT_NS
    rig.now_ns += MS
    rig.request()
    assert rig.outside.wakes == 1
    rig.answer('/p1', first)
    rig.rules(reply_timeout_s=0.01)
    rig.robot('other')
    rig.request('other')
    assert rig.outside.wakes == 2
    assert rig.dispatcher.on_timer(rig.now_ns) == rig.now_ns + 10 * MS


def test_nothing_under_way_is_nothing_due():
    rig = prod(ALONE)
    assert rig.dispatcher.on_timer(rig.now_ns) is None
    rig.answer('/p1', rig.request())
    assert rig.dispatcher.on_timer(rig.now_ns) is None


def test_what_was_executed_belongs_to_the_slot_of_the_request_before(rig):
    for episode, actions, fallbacks in (('a', 0, 0), ('b', 10, 1), ('b', 30, 1), ('a', 31, 2)):
        rig.request(
            episode=episode_in(episode),
            executed=ExecutionReport(actions=actions, fallbacks=fallbacks),
        )
    a, b = rig.stats.slot('a'), rig.stats.slot('b')
    assert (a.commands, a.fallbacks, b.commands, b.fallbacks) == (10, 1, 21, 1)
    assert [header.seq for _, header, _ in rig.outside.heard] == [1, 2, 3, 4]


def test_a_halt_counts_once_for_the_slot_that_drove(rig):
    for episode, halt in (('a', 0), ('a', 1), ('a', 1), ('b', 0), ('b', 2), ('b', 0), ('b', 7)):
        rig.request(episode=episode_in(episode), executed=ExecutionReport(halt=halt))
    assert (rig.stats.slot('a').halts, rig.stats.slot('b').halts) == (1, 2)


def test_a_robot_that_is_halted_when_it_connects_counts_for_no_slot(rig):
    rig.request(episode=episode_in('b'), executed=ExecutionReport(halt=1))
    assert rig.stats.slot('b').halts == 0


def test_a_robot_that_asks_is_heard(rig):
    rig.now_ns += 7 * SECOND
    rig.request()
    assert rig.robots.current('robot').last_heard_ns == rig.now_ns


def test_one_suspect_is_asked_where_there_is_nobody_else():
    rig = prod(ALONE)
    for _ in range(5):
        rig.request()
        rig.advance(TIMEOUT_NS)
    assert not rig.replicas['/p1'].is_ready
    rig.forget()
    for _ in range(3):
        raw = rig.request()
        assert rig.servers == ['/p1']
        rig.advance(10 * MS)
        rig.answer('/p1', raw)
    assert len(rig.replies) == 3
    assert rig.slots['prod'].is_healthy
    assert rig.texts == []


# answers without actions: who is asked next, who is blamed, and what the robot is told


@pytest.mark.parametrize('status', [Status.BAD_OBSERVATION, Status.TOO_LATE])
def test_what_is_the_robots_own_mistake_is_told_and_held_against_nobody(rig, status):
    for _ in range(20):
        raw = rig.request(episode=episode_in('a'))
        rig.answer(rig.servers[0], raw, status)
    assert len(rig.replies) == 20
    assert rig.slots['a'].is_healthy
    assert rig.stats.slot('a').failed.total() == 0


@pytest.mark.parametrize('status', [Status.POLICY_ERROR, Status.DRAINING, Status.NO_SESSION, 99])
def test_another_replica_is_asked_when_one_fails(rig, status):
    raw = rig.request(episode=episode_in('a'))
    (first,) = rig.servers
    rig.answer(first, raw, status)
    (second,) = rig.servers
    assert {first, second} == set(SLOTS['a'])
    rig.answer(second, raw)
    assert [(seq, flags) for seq, flags, _ in rig.replies] == [(1, 0)]
    assert rig.drop('failed_over') == 1
    assert rig.slots['a'].health.failures == 0
    # and it is the first one from now on
    rig.request(episode=episode_in('a'))
    assert rig.servers == [second]


def test_what_is_not_finite_is_not_asked_of_the_same_policy_again(rig):
    raw = rig.request(episode=episode_in('a'))
    rig.answer(rig.servers[0], raw, Status.NOT_FINITE)
    assert rig.servers == []
    assert len(rig.replies) == 1
    assert rig.stats.slot('a').failed == {'not_finite': 1}


def test_the_last_failure_is_what_the_robot_is_told(rig):
    raw = rig.request(episode=episode_in('a'))
    rig.answer(rig.servers[0], raw, Status.NO_SESSION)
    rig.answer(rig.servers[0], raw, Status.POLICY_ERROR)
    ((_, told),) = rig.outside.replies
    assert wire_chunk.decode(told).status == Status.POLICY_ERROR


def test_a_chunk_of_another_policy_never_reaches_a_robot(rig):
    raw = rig.request(episode=episode_in('a'))
    first = rig.servers[0]
    rig.answer(first, raw, policy='b@7')
    second = rig.servers[0]
    rig.answer(second, raw, policy='b@7')
    assert rig.replies == []
    assert 'replies as b@7, and slot a is a@1' in rig.replicas[first].text
    # nobody is left in slot a, so it went on in slot b
    third = rig.servers[0]
    assert third in SLOTS['b']
    rig.answer(third, raw)
    assert [slot for _, _, slot in rig.replies] == ['b']
    assert rig.drop('wrong_policy') == 2


def test_a_replica_is_blamed_for_what_another_one_can_answer():
    rig = prod()
    for number in range(2):
        rig.replicas['/p2'].preferring_sessions += 10
        raw = rig.request(episode=f'episode-{number}')
        rig.answer('/p1', raw, Status.POLICY_ERROR)
        rig.answer('/p2', raw)
        assert rig.servers == ['/p1', '/p2']
    assert 'policy_error' in rig.replicas['/p1'].health.reason
    assert rig.replicas['/p2'].is_ready
    assert rig.slots['prod'].health.failures == 0


def test_a_replica_is_blamed_where_another_one_could_not_be_asked():
    rig = Rig(PROD)
    rig.robot(places={'prod': ('/p1',)})
    for _ in range(2):
        rig.answer('/p1', rig.request(), Status.POLICY_ERROR)
    assert not rig.replicas['/p1'].is_ready
    assert rig.slots['prod'].health.failures == 0


def test_a_server_that_was_started_anew_is_no_bad_slot():
    """All robots have lost their sessions at once, which are opened again."""
    rig = Rig(ALONE)
    for number in range(20):
        rig.robot(f'robot-{number}')
        raw = rig.request(f'robot-{number}')
        rig.answer('/p1', raw, Status.NO_SESSION)
    assert (len(rig.replies), len(rig.outside.reopened)) == (20, 20)
    assert rig.slots['prod'].health.failures == 0


def test_a_server_that_forgets_ever_again_is_a_bad_slot():
    rig = prod(ALONE)
    for _ in range(6):
        rig.answer('/p1', rig.request(), Status.NO_SESSION)
    assert not rig.slots['prod'].is_healthy


def test_each_request_counts_as_one_failure_however_many_are_lost_at_once():
    rig = Rig(ALONE)
    for number in range(12):
        rig.robot(f'robot-{number}')
        rig.request(f'robot-{number}')
    rig.advance(TIMEOUT_NS)
    assert rig.stats.slot('prod').failed == {'timeout': 12}
    assert rig.drop('timeout') == 12


def test_what_a_dead_one_owes_is_asked_of_the_other_slot_as_soon_as_that_is_known():
    rig = Rig({'a': ('/a1',), 'b': ('/b1',)}, slot_unhealthy_threshold=2)
    for number in range(6):
        rig.robot(f'robot-{number}')
        rig.request(f'robot-{number}', episode_in('a', number))
        rig.advance(100 * MS)
    rig.forget()
    rig.advance(TIMEOUT_NS - 500 * MS)
    # two are overdue, four are owed
    assert rig.servers == ['/b1'] * 6
    assert rig.stats.slot('a').moved == 6


def test_a_robot_at_which_the_policy_fails_costs_no_replica():
    """For example with a task that is too long for it."""
    rig = prod()
    for _ in range(4):
        raw = rig.request()
        for _ in PROD['prod']:
            rig.answer(rig.servers[-1], raw, Status.POLICY_ERROR)
    assert all(replica.is_ready for replica in rig.replicas.values())
    assert rig.slots['prod'].health.failures == 4
    assert len(rig.replies) == 4
