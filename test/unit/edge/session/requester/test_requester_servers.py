# SPDX-License-Identifier: Apache-2.0
"""Which server a requester asks, how soon after another one failed, and when it gives up."""

from __future__ import annotations

import pytest
from support.edge.requester_rig import ABC, CHUNK, Simulation

from lerobot_serve.contract.schema import Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest

GONE = ServerUnreachable('no answer')
OTHER_JOINTS = SessionRefused(Refusal.ACTION_NAMES, 'the policy moves another robot')
FULL = SessionRefused(Refusal.CAPACITY, '2 of 2 sessions are open')


def asked_at(bench: Simulation) -> list[tuple[float, str]]:
    """Have the moments at which sessions are asked for noted."""
    seen, opening = [], bench.transport.open_session

    def open_session(server: str, epoch: int) -> object:
        seen.append((round(bench.now_s, 3), server))
        return opening(server, epoch)

    bench.transport.open_session = open_session
    return seen


def test_the_servers_are_asked_in_order_without_a_pause_and_then_with_growing_ones():
    bench = Simulation()
    bench.transport.refusals = dict.fromkeys(ABC, GONE)
    seen = asked_at(bench)
    bench.run(6.0)
    # half of 1, 2 and 4 s
    starts = [0.0, 0.5, 1.5, 3.5, 5.5]
    assert seen == [(at_s, server) for at_s in starts for server in ABC]
    # each attempt has an epoch of its own: an earlier one may have been opened unheard
    assert bench.transport.epochs == list(range(15))
    assert bench.connection.state == ConnectionState.CONNECTING
    assert bench.connection.reason == '/a: no answer; /b: no answer; /c: no answer'


@pytest.mark.parametrize('status', [Status.NO_SESSION, Status.DRAINING])
def test_a_server_whose_session_is_over_is_left_at_once(status):
    bench = Simulation()
    bench.answers['/a'] = {'status': status, 'status_text': 'who are you'}
    seen = asked_at(bench)
    bench.run(0.2)
    assert seen == [(0.0, '/a'), (0.05, '/b')]
    assert bench.servers.failures == {'/a': 'server error: who are you'}
    _, _, request = bench.requests[1]
    assert (request.header.session_epoch, request.header.seq) == (1, 1)


def test_a_server_that_only_fails_is_left_after_five_answers():
    bench = Simulation()
    bench.answers['/a'] = {'status': Status.POLICY_ERROR, 'status_text': 'no memory'}
    bench.run(1.5)
    assert [server for _, server, _ in bench.requests][:6] == ['/a'] * 5 + ['/b']
    assert bench.transport.servers == ['/a', '/b']
    assert bench.servers.failures == {'/a': 'server error: no memory'}
    assert bench.drops == {'policy_error': 5}


def test_failures_count_only_in_a_row_and_of_one_server():
    bench = Simulation()
    bad, left = {'robot': CHUNK * float('nan')}, bench.answers
    left['/a'] = bad
    # a chunk between two rows of failures, then silence, then another server that fails as often
    bench.at(0.45, left.clear)
    bench.at(0.61, lambda: left.update({'/a': bad}))
    bench.at(1.0, lambda: left.update({'/a': None, '/b': bad}))
    bench.play(4.0)
    bench.run(2.6)
    counts = [server for _, server, _ in bench.requests]
    assert bench.transport.servers[:2] == ['/a', '/b']
    assert counts.count('/b') == 4
    assert bench.transport.servers == ['/a', '/b']


def test_a_server_that_opens_sessions_and_answers_nothing_is_waited_for_longer_and_longer():
    bench = Simulation(servers=('/a',))
    bench.answers['/a'] = None
    seen = asked_at(bench)
    bench.run(9.0)
    assert [at_s for at_s, _ in seen] == [0.0, 1.5, 3.5, 6.5]


def test_with_an_answer_the_pauses_are_short_again():
    bench = Simulation(*[GONE] * 3, servers=('/a',))
    bench.at(3.6, lambda: bench.answers.update({'/a': {'status': Status.NO_SESSION}}))
    bench.at(3.6, bench.actions.clear)
    seen = asked_at(bench)
    bench.play(8.0)
    bench.run(4.5)
    assert [at_s for at_s, _ in seen][:4] == [0.0, 0.5, 1.5, 3.5]
    assert seen[4][0] - 3.6 < 0.8


def test_at_first_a_server_that_does_not_fit_is_told_and_asked_again():
    bench = Simulation(OTHER_JOINTS, servers=('/a',))
    reasons = []
    bench.at(0.1, lambda: reasons.append((bench.connection.state, bench.connection.reason)))
    bench.run(1.0)
    assert reasons == [(ConnectionState.CONNECTING, '/a: the policy moves another robot')]
    assert bench.connection.state == ConnectionState.STREAMING


def lose(bench: Simulation, **refusals: Exception) -> None:
    """From 1 s on all sessions are over; servers refuse as told."""

    def end() -> None:
        bench.answers.update({name: {'status': Status.NO_SESSION} for name in ABC})
        bench.transport.refusals.update({f'/{name}': error for name, error in refusals.items()})

    bench.at(1.0, end)
    bench.play(60.0)


def test_once_there_was_a_session_a_server_that_does_not_fit_is_given_up():
    bench = Simulation(servers=('/a',))
    lose(bench, a=OTHER_JOINTS)
    bench.run(3.0)
    assert bench.states == ['STREAMING', 'RECONNECTING', 'DEAD']
    assert bench.connection.reason == '/a: the policy moves another robot'
    assert bench.pipeline.status.server == ''


def test_while_another_server_is_left_to_try_one_that_does_not_fit_is_passed_by():
    bench = Simulation(servers=('/a', '/b', '/c'))
    lose(bench, a=FULL, b=OTHER_JOINTS)
    bench.at(1.0, lambda: bench.answers.update({'/c': {}}))
    bench.run(2.0)
    assert bench.transport.servers == ['/a', '/b', '/c']
    assert ConnectionState.DEAD.name not in bench.states
    assert bench.connection.state == ConnectionState.STREAMING


@pytest.mark.parametrize(
    ('refusals', 'dead'),
    [
        ({'a': OTHER_JOINTS, 'b': OTHER_JOINTS, 'c': OTHER_JOINTS}, True),
        ({'a': OTHER_JOINTS, 'b': OTHER_JOINTS, 'c': FULL}, False),
        ({'a': OTHER_JOINTS, 'b': GONE, 'c': OTHER_JOINTS}, False),
        ({'a': GONE, 'b': OTHER_JOINTS, 'c': OTHER_JOINTS}, False),
    ],
)
def test_it_gives_up_only_when_none_of_them_fits(refusals, dead):
    bench = Simulation()
    lose(bench, **refusals)
    bench.run(20.0)
    assert (bench.connection.state == ConnectionState.DEAD) == dead
    assert all(f'/{name}: {error}' in bench.connection.reason for name, error in refusals.items())


def test_what_was_lost_before_the_last_chunk_does_not_count_any_more():
    bench = Simulation()
    bench.answers['/a'] = {'status': Status.NO_SESSION}
    bench.at(2.0, lambda: bench.transport.refusals.update(dict.fromkeys(ABC, OTHER_JOINTS)))
    # goes home, and finds nobody that fits
    bench.at(2.0, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(2.1)
    assert bench.transport.servers == ['/a', '/b', *ABC]
    assert bench.connection.state == ConnectionState.DEAD


def test_a_server_that_is_not_there_costs_no_time_where_there_are_others():
    bench = Simulation()
    bench.transport.unavailable = {'/a', '/b'}
    seen = asked_at(bench)
    bench.run(1.0)
    assert seen == [(0.0, '/c')]
    assert bench.servers.failures == {'/a': 'server not available', '/b': 'server not available'}


def test_the_only_server_is_asked_even_where_nobody_sees_it():
    bench = Simulation(servers=('/a',))
    bench.transport.unavailable = {'/a'}
    seen = asked_at(bench)
    bench.run(1.0)
    assert seen == [(0.0, '/a')]


def test_it_does_not_go_home_where_nobody_is():
    bench = Simulation()
    bench.transport.unavailable = {'/a'}
    bench.at(2.0, lambda: bench.requester.begin_episode(EpisodeRequest('', 'second')))
    bench.at(3.0, bench.transport.unavailable.clear)
    bench.at(4.0, lambda: bench.requester.begin_episode(EpisodeRequest('', 'third')))
    seen = asked_at(bench)
    bench.play(10.0)
    bench.run(5.0)
    assert seen == [(0.0, '/b'), (4.0, '/a')]
    assert bench.transport.resets == [(0, 1, 'second')]


def test_a_refusal_that_names_no_reason_is_asked_again():
    bench = Simulation(SessionRefused(Refusal.OK, ''), servers=('/a',))
    bench.run(1.0)
    assert bench.transport.servers == ['/a', '/a']


@pytest.mark.parametrize('begin_at_s', [None, 20.0])
def test_a_robot_that_is_given_up_asks_nobody_until_somebody_begins(begin_at_s):
    bench = Simulation(max_offline_s=10.0)
    lose(bench, a=GONE, b=GONE, c=GONE)
    seen = asked_at(bench)
    asked_when_dead = []
    bench.at(12.0, lambda: asked_when_dead.append(len(seen)))
    bench.at(19.9, lambda: asked_when_dead.append(len(seen)))
    if begin_at_s:
        bench.at(begin_at_s, bench.transport.refusals.clear)
        bench.at(begin_at_s, bench.answers.clear)
        bench.at(begin_at_s, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(21.0)
    assert asked_when_dead[0] == asked_when_dead[1] > 9
    dead = ['STREAMING', 'RECONNECTING', 'DEAD']
    if begin_at_s:
        assert bench.states == [*dead, 'CONNECTING', 'STREAMING']
        assert seen[-1] == (20.0, '/a')
    else:
        assert bench.states == dead
        assert len(seen) == asked_when_dead[0]


@pytest.mark.parametrize('had_session', [False, True])
def test_episodes_that_begin_without_a_session_do_not_defer_the_teardown(had_session):
    bench = Simulation(servers=('/a',), max_offline_s=10.0)
    if had_session:
        lose(bench, a=GONE)
    else:
        bench.transport.refusals['/a'] = OTHER_JOINTS
    for begin_at_s in (3.0, 6.0, 9.0):
        bench.at(begin_at_s, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(12.0)
    assert bench.connection.state == ConnectionState.DEAD


def test_beginning_anew_revives_before_the_thread_gets_to_it():
    bench = Simulation(servers=('/a',))
    lose(bench, a=OTHER_JOINTS)
    bench.run(3.0)
    assert bench.connection.state == ConnectionState.DEAD
    bench.requester.begin_episode(EpisodeRequest())
    assert bench.connection.state == ConnectionState.CONNECTING


def test_it_goes_home_when_an_episode_begins_and_not_before():
    bench = Simulation(GONE)
    bench.at(5.0, lambda: bench.requester.begin_episode(EpisodeRequest('', 'second')))
    seen = asked_at(bench)
    bench.play(10.0)
    bench.run(6.0)
    assert seen == [(0.0, '/a'), (0.0, '/b'), (5.0, '/a')]
    # the one at /b is left; the new one is not told of a boundary that its requests tell
    assert bench.transport.left == ['/b', '/a']
    assert bench.transport.resets == []
    servers = {request.episode_id: server for _, server, request in bench.requests}
    assert servers['second'] == '/a'


def test_at_home_an_episode_begins_within_the_session():
    bench = Simulation()
    bench.at(1.0, lambda: bench.requester.begin_episode(EpisodeRequest('', 'second')))
    bench.run(2.0)
    assert bench.transport.opened == [('/a', 0)]
    assert bench.transport.resets == [(0, 1, 'second')]
