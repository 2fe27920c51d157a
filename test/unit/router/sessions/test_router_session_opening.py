# SPDX-License-Identifier: Apache-2.0
"""Sessions of robots at the replicas of every slot: opened, refused, slot not used."""

from __future__ import annotations

import pytest
from support.router.dispatch_rig import ask_of, episode_in, SECOND
from support.router.replica_rig import OPEN_TIMEOUT_S, places_of, SINGLE, THREE
from support.server import session_rig

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused


def test_a_session_is_open_in_every_slot_with_one_that_stands_by(make):
    rig = make({'a': ('/a1', '/a2', '/a3'), 'b': ('/b1',)})
    opened = rig.control.open(ask_of())
    assert [len(each.places) for each in opened.values()] == [2, 1]
    assert opened['a'].reply.server == opened['a'].places[0]
    assert rig.sessions() == rig.places()


def test_robots_spread_over_the_replicas(make):
    rig = make({'prod': ('/p1', '/p2', '/p3', '/p4')}, standby=0)
    for number in range(16):
        rig.control.open(ask_of(f'robot-{number}'))
    assert [replica.preferring_sessions for replica in rig.slots['prod']] == [4, 4, 4, 4]


def test_a_second_robot_of_that_name_is_refused_while_the_first_is_heard(rig):
    rig.control.open(ask_of())
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
def test_a_robot_that_does_not_fit_is_refused_and_nothing_stays_open(rig, server):
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


def test_a_hanging_replica_delays_the_end_of_sessions_by_its_timeout_once(rig):
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
    rig = make({'prod': ('/p1',)}, standby=0)
    # a server with its bounds, behind the router
    served = session_rig.table(max_sessions=100, process_sessions=1)
    for number in range(40):
        rig.control.open(ask_of(f'robot_{number}', instance=number))
    for passed_on in rig.clients['/p1'].sessions.values():
        served.open(
            session_rig.ask(passed_on.client_id, instance=passed_on.instance), 0, limit=100
        )
    assert len(served) == 40
    with pytest.raises(SessionRefused, match='max_sessions_per_process'):
        served.open(session_rig.ask('one_more', instance=7), 0, limit=100)
