# SPDX-License-Identifier: Apache-2.0
"""A server that is lost is left at once; one that is only slow is not."""

from __future__ import annotations

import pytest
from support.edge.requester_rig import ABC, Simulation

from lerobot_serve.contract.data_path.message_parts import NO_ACTIONS
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.edge.session.servers import ServerLiveliness
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.links.link import Presence

CHUNK_S = 0.2


def streaming(**pace: object) -> Simulation:
    """Return a simulation whose servers answer, and whose robot plays."""
    bench = Simulation(max_consecutive_timeouts=2, max_action_age_s=60.0, **pace)
    bench.play(12.0)
    return bench


def lose(bench: Simulation, server: str, *, loss: Presence = Presence.EXPIRED) -> None:
    """Let the writer of a server be lost, as the thread `replies` reports it."""
    bench.answers[server] = None
    bench.liveliness.update(server, loss)


def see(bench: Simulation, server: str) -> None:
    bench.liveliness.update(server, Presence.THERE)


@pytest.mark.parametrize(
    ('loss', 'words'),
    [
        (Presence.EXPIRED, 'liveliness lease expired (2 s)'),
        (Presence.CLOSED, 'server closed the session'),
        (Presence.GONE, 'server exited, was killed'),
    ],
)
def test_lost_liveliness_leads_to_the_next_server_at_once(loss, words):
    bench = streaming(request_timeout_s=5.0)
    see(bench, '/a')
    bench.at(1.01, lambda: lose(bench, '/a', loss=loss))
    bench.run(1.5)
    assert bench.transport.opened == [('/a', 0), ('/b', 1)]
    assert bench.states == ['STREAMING', 'RECONNECTING', 'DEGRADED', 'STREAMING']
    assert words in bench.changes[1].reason
    lost, opened = bench.changes[1:3]
    assert lost.at_ns == opened.at_ns == 1_010_000_000


def test_lost_liveliness_of_another_server_changes_nothing():
    bench = streaming()
    see(bench, '/b')
    bench.at(1.01, lambda: lose(bench, '/b'))
    bench.run(2.0)
    assert bench.transport.servers == ['/a']
    assert bench.states == ['STREAMING']


def test_a_loss_before_the_session_was_opened_is_none_of_it():
    bench = streaming()
    see(bench, '/a')
    bench.liveliness.update('/a', Presence.EXPIRED)
    bench.run(2.0)
    assert bench.transport.servers == ['/a']


def test_a_server_that_is_back_is_asked_before_the_wait_is_over():
    bench = streaming(servers=('/a',))
    see(bench, '/a')
    bench.at(1.01, lambda: lose(bench, '/a'))
    bench.at(1.01, lambda: bench.transport.refusals.update({'/a': ServerUnreachable('not there')}))
    bench.at(1.8, bench.transport.refusals.clear)
    bench.at(1.8, bench.answers.clear)
    bench.at(1.8, lambda: see(bench, '/a'))
    bench.run(2.0)
    assert bench.requests[-1][0] < 2.0
    assert bench.states[-1] == 'STREAMING'


def test_a_silent_server_is_left_within_half_of_what_is_buffered():
    bench = streaming(request_timeout_s=5.0)
    bench.at(1.0, lambda: bench.transport.unresponsive.add('/a'))
    bench.at(1.0, lambda: bench.answers.update({'/a': None}))
    bench.run(3.0)
    asked_s = {server: at_s for at_s, server, _ in bench.requests if server == '/a'}
    first_s = next(at_s for at_s, server, _ in bench.requests if server == '/b')
    # half of the default buffer, and no more
    assert first_s - asked_s['/a'] == pytest.approx(0.25, abs=0.02)
    assert bench.transport.probed == ['/a']
    assert 'STALLED' not in bench.states
    assert 'no reply for' in next(
        c.reason for c in bench.changes if c.event.name == 'SESSION_LOST'
    )


def test_a_server_that_is_slow_and_shows_signs_of_life_is_not_left():
    bench = streaming()
    bench.round_trip_s = 0.45
    bench.run(5.0)
    assert set(bench.transport.servers) == {'/a'}
    assert bench.transport.probed


def test_a_single_server_is_not_probed():
    bench = streaming(servers=('/a',))
    bench.transport.unresponsive.add('/a')
    bench.round_trip_s = 0.45
    bench.run(5.0)
    assert bench.transport.probed == []
    assert bench.transport.servers == ['/a']


@pytest.mark.parametrize('others', [{'/b', '/c'}])
def test_nobody_is_left_for_a_server_that_is_not_there(others):
    bench = streaming()
    bench.transport.unresponsive.add('/a')
    bench.transport.unavailable = others
    bench.round_trip_s = 0.45
    bench.run(5.0)
    assert set(bench.transport.servers) == {'/a'}


def test_while_paused_a_session_that_the_server_closed_is_opened_with_the_next_request():
    bench = streaming()
    see(bench, '/a')
    bench.at(1.0, lambda: bench.requester.set_idle(idle=True))
    bench.at(1.5, lambda: lose(bench, '/a', loss=Presence.CLOSED))
    bench.at(1.6, bench.answers.clear)
    bench.at(2.0, lambda: bench.requester.set_idle(idle=False))
    bench.run(3.0)
    assert bench.states == ['STREAMING']
    assert bench.transport.servers == ['/a', '/a']


def test_while_paused_a_killed_server_is_noticed():
    bench = streaming()
    see(bench, '/a')
    bench.at(1.0, lambda: bench.requester.set_idle(idle=True))
    bench.at(1.5, lambda: lose(bench, '/a'))
    bench.run(2.0)
    assert bench.states == ['STREAMING', 'RECONNECTING', 'DEGRADED']
    assert bench.transport.servers == ['/a', '/b']


# the parts


def test_liveliness_is_that_of_the_session():
    wakes = []
    liveliness = ServerLiveliness(2.0, lambda: wakes.append(1))
    liveliness.begin_session('/a')
    assert liveliness.loss_reason() == ''
    liveliness.update('/a', Presence.THERE)
    assert len(wakes) == 1
    liveliness.update('/a', Presence.EXPIRED)
    assert len(wakes) == 2
    assert 'liveliness lease expired (2 s)' in liveliness.loss_reason()
    assert liveliness.has_lease_expired
    # it is back, with the same writer
    liveliness.update('/a', Presence.THERE)
    assert liveliness.loss_reason() == ''
    liveliness.update('/a', Presence.CLOSED)
    assert liveliness.loss_reason() == 'server closed the session or exited'
    liveliness.begin_session('/a')
    assert liveliness.loss_reason() == ''
    liveliness.begin_session('/b')
    assert liveliness.loss_reason() == ''


def test_the_others_are_named_in_turn():
    bench = Simulation()
    assert bench.servers.untried == ABC[1:]
    bench.servers.mark_failed('x')
    assert bench.servers.untried == ('/c',)
    bench.servers.mark_failed('x')
    assert bench.servers.untried == ()


def test_a_server_that_does_not_know_the_session_is_asked_for_another_one():
    bench = streaming(servers=('/a',), request_timeout_s=5.0)
    bench.answers['/a'] = None

    def tell_all() -> None:
        request = bench.requests[-1][2]
        bench.answers.clear()
        for client_id in ('robot_2', 'robot_1'):
            raw = reply_bytes(request, NO_ACTIONS, client_id=client_id, status=Status.NO_SESSION)
            bench.inbox.put_no_session(raw)

    bench.at(0.1, tell_all)
    bench.run(2.0)
    # at once, and what is for other robots is not a concern of it
    assert bench.drops == {'no_session': 1}
    assert 'request_timeout' not in bench.drops
    assert len(bench.transport.opened) == 2
    assert bench.states[-1] == 'STREAMING'
