# SPDX-License-Identifier: Apache-2.0
"""Sessions of robots at the replicas: taken over, kept, filled and given up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from support.router.dispatch_rig import ask_of, episode_in, SECOND, SLOTS
from support.router.replica_rig import ControlRig, OPEN_TIMEOUT_S, places_of, SINGLE, THREE
from support.server import session_rig

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.schema import Flag, Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.router.sessions.manager import KEEP_ALIVE_NS, SESSIONS_PER_ROUND


@pytest.fixture
def connected(make):
    """Return makers of rigs with a robot that has its sessions."""

    def a_rig(*arguments, **more) -> ControlRig:
        made = make(*arguments, **more)
        made.control.open(ask_of())
        return made

    return a_rig


@pytest.fixture
def rig(connected):
    return connected()


# the same robot again


def test_a_new_session_takes_the_place_of_the_old_one(connected):
    rig = connected(THREE, standby_replicas=0)
    (old,) = places_of(rig)['prod']
    rig.replicas[old].health.mark_unhealthy('x', rig.now_ns)
    rig.request()
    rig.control.open(ask_of(epoch=2))
    assert rig.drop('session_over') == 1
    assert places_of(rig)['prod'] != (old,)
    assert rig.sessions() == rig.places()
    assert len(rig.table.in_flight) == 0
    rig.request(epoch=1)
    assert rig.drop('no_session') == 1


def test_what_is_known_of_a_robot_goes_on_in_its_next_session(rig):
    episode = episode_in('a')
    rig.request(episode=episode, executed=ExecutionReport(actions=5, fallbacks=1))
    robot = rig.robots.current('robot')
    robot.flags, robot.failed_slot = Flag.STATE_LOST, 'a'
    rig.control.open(ask_of(epoch=2))
    robot = rig.robots.current('robot')
    assert (robot.episode_id, robot.slot, robot.failed_slot) == (episode, 'a', 'a')
    # what it did while it had none was still that episode's
    raw = rig.request(episode=episode, epoch=2, executed=ExecutionReport(actions=25, fallbacks=15))
    assert (rig.stats.slot('a').commands, rig.stats.slot('a').fallbacks) == (20, 14)
    rig.answer(rig.outside.sent[-1][0], raw)
    assert [flags for _, flags, _ in rig.replies] == [Flag.STATE_LOST]


def test_the_same_ask_twice_is_one_session_and_what_is_under_way_goes_on(rig):
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    robot = rig.robots.current('robot')
    rig.control.open(ask_of())
    assert rig.robots.current('robot') is robot
    rig.answer(server, raw)
    assert len(rig.replies) == 1
    assert rig.drop('session_over') == 0
    assert rig.sessions() == rig.places()


def test_an_answer_to_the_session_before_reaches_nobody(rig):
    raw = rig.request(episode=episode_in('a'))
    ((server, _),) = rig.outside.sent
    rig.control.open(ask_of(epoch=2))
    rig.answer(server, raw)
    assert (rig.replies, rig.drop('late_reply')) == ([], 1)
    rig.advance(10 * SECOND)
    assert rig.replicas[server].health.failures == 0


def test_an_episode_that_ended_is_waited_for_by_nobody(rig):
    rig.request(episode=episode_in('a'))
    reset = SimpleNamespace(client_id='robot', session_epoch=1, episode=1)
    assert rig.control.reset(reset) == []
    assert rig.drop('episode_over') == 1
    assert all(client.resets == [reset] for client in rig.clients.values())
    rig.advance(10 * SECOND)
    assert rig.drop('timeout') == 0
    assert all(replica.health.failures == 0 for replica in rig.replicas.values())
    # the first request of the new one may come before the word that it has begun
    rig.request(episode=episode_in('a', 1), number=2)
    assert rig.control.reset(SimpleNamespace(**{**vars(reset), 'episode': 2})) == []
    assert len(rig.table.in_flight) == 1


def test_a_reset_of_nobody_and_one_that_does_not_arrive_are_said(make):
    rig = make()
    reset = SimpleNamespace(client_id='robot', session_epoch=1, episode=1)
    assert 'has no session of epoch 1' in rig.control.reset(reset)[0]
    rig.control.open(ask_of())
    rig.clients['/b1'].hangs = True
    (text,) = rig.control.reset(reset)
    assert text == '/b1: /b1 did not answer within 1 s'


# later


def test_a_lost_session_is_opened_again(rig):
    robot = rig.robots.current('robot')
    for client in rig.clients.values():
        client.restart()
    for server in rig.replicas:
        rig.control.reopen_session(robot, server)
    assert rig.sessions() == rig.places()
    assert places_of(rig) == SLOTS


def test_a_session_that_cannot_be_opened_again_is_given_up(rig):
    rig.clients['/a1'].refuses = Refusal.DRAINING
    rig.control.reopen_session(rig.robots.current('robot'), '/a1')
    assert places_of(rig)['a'] == ('/a2',)
    assert rig.drop('reopen_failed') == 1


def test_one_that_does_not_answer_for_a_while_keeps_its_sessions(make):
    rig = make(SINGLE)
    names = [f'robot-{number}' for number in range(5)]
    for name in names:
        rig.control.open(ask_of(name))
    rig.clients['/a1'].hangs = True
    for name in names:
        rig.control.reopen_session(rig.robots.current(name), '/a1')
        assert places_of(rig, name) == SINGLE
    assert rig.clients['/a1'].calls.count('open') == len(names) + 1
    assert rig.drop('reopen_failed') == len(names)


def test_where_another_one_is_well_it_takes_the_place_of_one_that_does_not_answer(connected):
    rig = connected(THREE)
    first, second = places_of(rig)['prod']
    third = next(name for name in rig.replicas if name not in (first, second))
    rig.clients[second].hangs = True
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.poll()
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.poll()
    rig.poll()
    assert places_of(rig)['prod'] == (first, third)


def test_nothing_is_opened_for_who_is_gone_or_was_given_up(rig):
    robot = rig.robots.current('robot')
    rig.clients['/a1'].refuses = Refusal.DRAINING
    rig.control.reopen_session(robot, '/a1')
    rig.clients['/a1'].restart()
    calls = len(rig.clients['/a1'].calls)
    rig.control.reopen_session(robot, '/a1')
    rig.control.close('robot', 1)
    rig.control.reopen_session(robot, '/a2')
    assert len(rig.clients['/a1'].calls) == calls
    assert not any(rig.sessions().values())
    assert rig.control.close('robot', 1) is None


def test_the_place_of_one_that_went_is_taken_by_another(connected):
    rig = connected(THREE)
    first, second = places_of(rig)['prod']
    rig.set_available(first, False)
    rig.poll()
    third = next(name for name in rig.replicas if name not in (first, second))
    assert places_of(rig)['prod'] == (second, third)
    assert rig.replicas[first].sessions == 0


@pytest.mark.parametrize('trouble', ['hangs', 'is for other robots', 'refused them'])
def test_a_slot_that_cannot_be_had_keeps_no_robot_from_another(make, trouble):
    rig = make({'a': ('/a1', '/a2'), 'b': ('/b1',)})
    rig.set_available('/a2', False)
    rig.set_available('/b1', False)
    names = [f'robot-{number}' for number in range(2 * SESSIONS_PER_ROUND)]
    for name in names:
        rig.control.open(ask_of(name))
    rig.set_available('/b1', True)
    if trouble == 'hangs':
        rig.clients['/b1'].hangs = True
    elif trouble == 'is for other robots':
        rig.slots['b'].incompatibility = 'incompatible with slot a'
        rig.control._compatibility.known.clear()
        rig.clients['/b1'].action_names = ('grip',)
    else:
        for robot in rig.robots:
            robot.refused['b'] = 'b@7'
    rig.poll()
    rig.set_available('/a2', True)
    rig.poll()
    rig.poll()
    assert all(len(places_of(rig, name)['a']) == 2 for name in names)
    assert rig.clients['/b1'].calls.count('open') <= 1


def test_a_place_that_is_filled_leaves_first_who_was_put_first_meanwhile(make):
    rig = make(THREE, standby_replicas=2)
    rig.set_available('/p3', False)
    rig.control.open(ask_of())
    rig.set_available('/p3', True)
    robot = rig.robots.current('robot')

    def reorder(timeout_s: float) -> bool:
        # what the dispatcher may do while a session is being opened
        with rig.table.lock:
            first, second = robot.places['prod']
            robot.places = {'prod': (second, first)}
            rig.replicas[first].preferring_sessions -= 1
            rig.replicas[second].preferring_sessions += 1
        return True

    before = robot.places['prod']
    rig.clients['/p3'].wait_until_matched = reorder
    rig.poll()
    assert robot.places['prod'] == (*before[::-1], '/p3')


def test_sessions_that_are_not_used_are_kept_alive(rig):
    rig.poll()
    for client in rig.clients.values():
        client.calls.clear()
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.round_trip(episode=episode_in('a'))
    (used,) = {server for server, _ in rig.outside.sent}
    rig.poll()
    kept = [name for name, client in rig.clients.items() if client.calls == ['open']]
    assert sorted(kept) == sorted(rig.replicas.keys() - {used})
    rig.poll()
    assert all(len(client.calls) <= 1 for client in rig.clients.values())


def test_a_robot_that_asks_another_router_now_is_left_to_it(rig):
    rig.poll()
    for client in rig.clients.values():
        client.refuses = Refusal.NAME_IN_USE
        client.calls.clear()
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.poll()
    assert rig.robots.current('robot') is None
    asked = sum(client.calls.count('open') for client in rig.clients.values())
    rig.advance(KEEP_ALIVE_NS + SECOND)
    rig.poll()
    assert sum(client.calls.count('open') for client in rig.clients.values()) == asked
    for client in rig.clients.values():
        client.refuses = None
    rig.control.open(ask_of(epoch=3))
    assert places_of(rig) == SLOTS


def test_nor_is_a_slot_filled_for_it(make):
    rig = make(SINGLE)
    rig.set_available('/b1', False)
    rig.control.open(ask_of())
    rig.set_available('/b1', True)
    rig.clients['/b1'].refuses = Refusal.NAME_IN_USE
    rig.poll()
    assert rig.robots.current('robot') is None
    assert rig.drop('slot_refused') == 0


def test_one_that_nobody_has_a_session_with_is_tried_by_a_call(connected):
    rig = connected(THREE)
    alone = next(r for r in rig.replicas.values() if not r.sessions)
    alone.health.mark_unhealthy('unresponsive: repeated late replies', rig.now_ns)
    rig.clients[alone.name].hangs = True
    rig.advance(3 * SECOND)
    rig.poll()
    assert not alone.is_ready
    rig.clients[alone.name].hangs = False
    rig.advance(10 * SECOND)
    rig.poll_until_probed()
    rig.advance(10 * SECOND)
    rig.poll()
    assert alone.is_ready
    assert f'{alone.name}: healthy again (status call succeeded)' in rig.told


def test_a_robot_that_one_policy_does_not_take_is_asked_of_it_once(make):
    rig = make(SINGLE)
    rig.set_available('/b1', False)
    rig.control.open(ask_of())
    rig.set_available('/b1', True)
    rig.clients['/b1'].refuses = Refusal.FPS
    for _ in range(5):
        rig.poll()
    assert rig.clients['/b1'].calls.count('open') == 1
    assert rig.drop('slot_refused') == 1
    assert any("slot b refused the session of 'robot'" in text for text in rig.told)
    rig.clients['/b1'].restart()
    rig.learn('/b1', 'b@2')
    rig.poll()
    assert places_of(rig)['b'] == ('/b1',)


# a server that has loaded another policy holds no session


@pytest.mark.parametrize('status', [{'active': False}, {'policy': 'other@a'}])
def test_a_server_that_reloads_between_two_rounds_gets_no_request_for_a_closed_session(
    make_router, status
):
    """The load of a small policy is shorter than a round."""
    rig = make_router()
    robot = rig.robot()
    server, *others = robot.places['a']
    rig.hear(server, **status)
    rig.hear(server)
    assert rig.replicas[server].is_ready
    assert robot.places['a'] == tuple(others)


def test_a_slot_has_the_sessions_of_all_robots_before_it_gets_a_share(make):
    rig = make(THREE, standby_replicas=0)
    names = [f'robot_{number}' for number in range(2 * SESSIONS_PER_ROUND)]
    for name in names:
        rig.control.open(ask_of(name))
    with rig.table.lock:
        for server in rig.replicas:
            rig.control.on_sessions_lost(server)
    assert not any(places_of(rig, name)['prod'] for name in names)
    rig.control.fill('prod')
    assert all(len(places_of(rig, name)['prod']) == 1 for name in names)
    assert rig.sessions() == rig.places()
    # a router with one slot has no slot of that name
    rig.control.fill('b')


# sessions of robots at the replicas of every slot: opened, refused, slot not used


def test_a_session_is_open_in_every_slot_with_one_that_stands_by(make):
    rig = make({'a': ('/a1', '/a2', '/a3'), 'b': ('/b1',)})
    opened = rig.control.open(ask_of())
    assert [len(each.places) for each in opened.values()] == [2, 1]
    assert opened['a'].reply.server == opened['a'].places[0]
    assert rig.sessions() == rig.places()


def test_robots_spread_over_the_replicas(make):
    rig = make({'prod': ('/p1', '/p2', '/p3', '/p4')}, standby_replicas=0)
    for number in range(16):
        rig.control.open(ask_of(f'robot-{number}'))
    assert [replica.preferring_sessions for replica in rig.slots['prod']] == [4, 4, 4, 4]


def test_a_second_robot_of_that_name_is_refused_while_the_first_is_heard(rig):
    rig.now_ns += 4 * SECOND
    rig.request()
    rig.now_ns += 4 * SECOND
    with pytest.raises(SessionRefused, match='in use by another robot') as refused:
        rig.control.open(ask_of(epoch=2, instance=2))
    assert refused.value.code == Refusal.NAME_IN_USE
    assert rig.robots.current('robot').request.instance == 1
    rig.now_ns += 2 * SECOND
    rig.control.open(ask_of(epoch=2, instance=2))
    robot = rig.robots.current('robot')
    assert (robot.request.instance, robot.slot, robot.flags) == (2, '', 0)
    assert rig.sessions() == rig.places()


@pytest.mark.parametrize('server', ['/a1', '/a2', '/b1', '/b2'])
def test_a_robot_that_does_not_fit_is_refused_and_nothing_stays_open(make, server):
    rig = make()
    rig.clients[server].refuses = Refusal.ACTION_NAMES
    with pytest.raises(SessionRefused, match=f'slot {server[1]} \\({server}\\)') as refused:
        rig.control.open(ask_of())
    assert refused.value.code == Refusal.ACTION_NAMES
    assert len(rig.robots) == 0
    assert not any(rig.sessions().values())


@pytest.mark.parametrize('how', ['capacity', 'draining', 'hangs', 'away', 'not wired'])
def test_a_slot_that_is_not_to_be_had_is_done_without_and_filled_later(make, how):
    rig = make(SINGLE)
    client = rig.clients['/b1']
    client.refuses = {'capacity': Refusal.CAPACITY, 'draining': Refusal.DRAINING}.get(how)
    client.hangs, client.wired = how == 'hangs', how != 'not wired'
    rig.set_available('/b1', how != 'away')
    opened = rig.control.open(ask_of())
    assert places_of(rig) == {'a': ('/a1',)}
    assert 'slot b' in str(opened['b'].refused)
    assert rig.sessions() == rig.places()
    rig.request(episode=episode_in('b'))
    assert rig.servers == ['/a1']
    rig.poll_until_probed()
    assert places_of(rig)['a'] == ('/a1',)
    assert not places_of(rig).get('b')
    client.restart()
    rig.set_available('/b1', True)
    rig.poll_until_probed()
    assert places_of(rig) == {'a': ('/a1',), 'b': ('/b1',)}
    rig.request(episode=episode_in('b', 1))
    assert rig.servers == ['/b1']


def test_where_no_slot_is_to_be_had_the_robot_is_told_why(make):
    rig = make(SINGLE)
    rig.clients['/a1'].refuses = Refusal.CAPACITY
    rig.set_available('/b1', False)
    with pytest.raises(
        SessionRefused, match=r'slot a .*CAPACITY; slot b: /b1: server unavailable'
    ) as refused:
        rig.control.open(ask_of())
    assert refused.value.code == Refusal.CAPACITY
    assert not any(rig.sessions().values())


def test_a_full_replica_is_passed_over(make):
    rig = make(THREE)
    rig.clients['/p1'].refuses = Refusal.CAPACITY
    rig.control.open(ask_of())
    assert places_of(rig) == {'prod': ('/p2', '/p3')}


def test_a_hanging_replica_delays_robots_by_its_timeout_once(make):
    rig = make(THREE)
    hung = rig.clients['/p1']
    hung.hangs = True
    for number in range(30):
        rig.control.open(ask_of(f'robot-{number}'))
        assert places_of(rig, f'robot-{number}') in (
            {'prod': ('/p2', '/p3')},
            {'prod': ('/p3', '/p2')},
        )
    assert hung.waited_s == OPEN_TIMEOUT_S
    for number in range(30):
        rig.control.close(f'robot-{number}', 1)
    assert hung.waited_s == OPEN_TIMEOUT_S
    assert rig.drop('open_unreachable') == 0
    # probes keep nobody waiting
    hung.hangs = False
    rig.poll_until_probed()
    rig.control.open(ask_of())
    assert hung.sessions


def test_a_hanging_replica_delays_the_end_of_sessions_by_its_timeout_once(make):
    rig = make()
    for number in range(10):
        rig.control.open(ask_of(f'robot-{number}'))
    rig.clients['/a1'].hangs = True
    for number in range(10):
        rig.control.close(f'robot-{number}', 1)
    assert rig.clients['/a1'].calls.count('close') == 1
    assert rig.drop('close_unreachable') == 10


def test_one_that_failed_lately_gets_a_session_only_where_there_is_no_other(make):
    rig = make(THREE)
    rig.replicas['/p1'].health.mark_unhealthy('x', rig.now_ns)
    rig.control.open(ask_of())
    assert places_of(rig) == {'prod': ('/p2', '/p3')}
    alone = make({'prod': ('/p1',)})
    alone.replicas['/p1'].health.mark_unhealthy('x', alone.now_ns)
    alone.control.open(ask_of())
    assert places_of(alone) == {'prod': ('/p1',)}


def test_a_slot_whose_policy_is_for_other_robots_refuses_nobody(make):
    rig = make(SINGLE)
    rig.clients['/b1'].action_names = ('grip',)
    rig.clients['/b1'].refuses = Refusal.ACTION_NAMES
    rig.poll()
    assert 'incompatible with slot a: actions differ' in rig.slots['b'].text
    opened = rig.control.open(ask_of())
    assert places_of(rig) == {'a': ('/a1',)}
    assert 'incompatible with slot a' in str(opened['b'].refused)
    rig.poll()
    assert rig.clients['/b1'].calls.count('open') == 0
    # another policy in its place
    rig.clients['/b1'].restart()
    rig.clients['/b1'].action_names = ('x', 'y')
    rig.learn('/b1', 'b@2')
    rig.poll()
    rig.poll()
    assert places_of(rig) == {'a': ('/a1',), 'b': ('/b1',)}


def test_forty_robots_through_one_router_are_forty_processes_to_a_server(make):
    rig = make({'prod': ('/p1',)}, standby_replicas=0)
    # a server with its bounds, behind the router
    served = session_rig.table(max_sessions=100, max_sessions_per_process=1)
    for number in range(40):
        rig.control.open(ask_of(f'robot_{number}', instance=number))
    for passed_on in rig.clients['/p1'].sessions.values():
        served.open(
            session_rig.ask(passed_on.client_id, instance=passed_on.instance), 0, limit=100
        )
    assert len(served) == 40
    with pytest.raises(SessionRefused, match='max_sessions_per_process'):
        served.open(session_rig.ask('one_more', instance=7), 0, limit=100)
