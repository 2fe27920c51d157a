# SPDX-License-Identifier: Apache-2.0
"""One timeout is no lost session; a late answer to the latest request counts; first contact."""

from __future__ import annotations

import pytest
from support.edge.requester_rig import CHUNK, MS, played, Simulation, starting

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.inputs.latest import InputsNotReady
from lerobot_serve.edge.session.settings import EpisodeRequest

MISFIT = SessionRefused(Refusal.ACTION_NAMES, 'arm_0.pos is not joint_0.pos')


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


def silent(limit: int, **more: object) -> Simulation:
    bench = Simulation(
        max_consecutive_timeouts=limit, request_timeout_s=1.0, servers=('/a', '/b'), **more
    )
    bench.answers['/a'] = None
    return bench


@pytest.mark.parametrize('limit', [1, 2, 5])
def test_a_streak_of_timeouts_ends_a_session(limit):
    bench = silent(limit)
    bench.run(limit + 0.5)
    epochs = [request.header.session_epoch for _, server, request in bench.requests[:limit]]
    assert epochs == [0] * limit
    assert bench.transport.servers == ['/a', '/b']
    assert bench.drops['request_timeout'] == limit


def test_an_answer_in_between_ends_the_streak():
    bench = silent(2)
    bench.at(1.5, bench.answers.clear)
    bench.at(1.5, lambda: bench.answer(bench.requests[-1][2]))
    bench.at(2.6, lambda: bench.answers.update({'/a': None}))
    bench.play(4.0)
    bench.run(3.9)
    assert bench.transport.servers == ['/a']


def test_a_timeout_while_actions_remain_is_degraded_and_an_answer_mends_it():
    bench = Simulation(
        max_consecutive_timeouts=5, request_timeout_s=0.2, servers=('/a',), degraded_after_s=60.0
    )
    bench.play(4.0)
    bench.at(1.0, lambda: bench.answers.update({'/a': None}))
    bench.at(1.6, bench.answers.clear)
    bench.run(3.0)
    assert bench.states == ['STREAMING', 'DEGRADED', 'STREAMING']


def test_a_late_answer_to_the_latest_request_is_merged(start):
    bench = start(request_timeout_s=1.0, max_consecutive_timeouts=2)
    request = bench.request()
    # nothing to ask with, so that it stays the latest
    bench.observations.errors.extend([InputsNotReady('camera front: nothing yet')] * 500)
    bench.now_ns = 1001 * MS
    bench.inbox.put_reply(b'wakes the thread')
    while bench.pipeline.status.dropped['request_timeout'] == 0:
        pass
    bench.answer(request)
    while not bench.pipeline.status.chunks_accepted:
        pass
    assert played(bench) == CHUNK.tolist()
    assert bench.connection.state.name == 'STREAMING'


def test_an_answer_that_comes_while_the_next_session_is_asked_for_counts():
    bench = silent(1)
    request = []

    def open_session(server: str, epoch: int, once=bench.transport.open_session):
        if server == '/b':
            request.append(bench.requests[0][2])
            bench.answer(request[0])
        return once(server, epoch)

    bench.transport.open_session = open_session
    bench.run(1.01)
    assert bench.pipeline.status.chunks_accepted == 1
    assert bench.drops == {'request_timeout': 1}


# first contact


@pytest.mark.parametrize('servers', [('/a',), ('/a', '/b')])
def test_a_misfit_at_first_contact_is_given_up_after_the_stated_time(servers):
    bench = Simulation(servers=servers, max_offline_s=20.0)
    bench.transport.refusals = dict.fromkeys(servers, MISFIT)
    bench.run(18.0)
    assert bench.states == []
    bench = Simulation(servers=servers, max_offline_s=20.0)
    bench.transport.refusals = dict.fromkeys(servers, MISFIT)
    bench.run(30.0)
    assert bench.states == ['DEAD']
    reason = bench.connection.reason
    assert reason.startswith('refused for 20 s')
    assert 'arm_0.pos' in reason
    assert bench.connection.changes[-1].at_ns >= 20 * 10**9


def test_a_server_that_is_not_there_yet_is_waited_for_without_limit():
    bench = Simulation(servers=('/a', '/b'), max_offline_s=20.0)
    bench.transport.refusals = {'/a': MISFIT, '/b': ServerUnreachable('not there')}
    bench.run(300.0)
    assert bench.states == []


def test_a_misfit_that_is_mended_in_time_is_served():
    bench = Simulation(servers=('/a',), max_offline_s=20.0)
    bench.transport.refusals = {'/a': MISFIT}
    bench.at(15.0, bench.transport.refusals.clear)
    bench.run(40.0)
    assert bench.states == ['STREAMING']


def test_a_reset_after_that_gives_the_whole_time_again():
    bench = Simulation(servers=('/a',), max_offline_s=20.0)
    bench.transport.refusals = {'/a': MISFIT}
    bench.at(40.0, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(55.0)
    assert bench.states == ['DEAD', 'CONNECTING']
