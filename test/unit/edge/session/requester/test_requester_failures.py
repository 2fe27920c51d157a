# SPDX-License-Identifier: Apache-2.0
"""The requester when a server fails, is silent or is gone, and when an operator begins anew."""

from __future__ import annotations

import threading

import pytest
from support.edge.requester_rig import Bench, CHUNK, MS, played, Simulation, starting

from lerobot_serve.contract.data_path.chunk import retry_after
from lerobot_serve.contract.errors import Malformed, Unencodable
from lerobot_serve.contract.schema import Flag, Refusal, Status
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.inputs.latest import InputsNotReady, LatestInputs, ObservationHistory
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.session.machine import MAX_HOLD_S

ONE = ('/a',)


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


def test_a_server_that_fails_at_once_is_asked_once_in_a_control_step():
    bench = Simulation(servers=ONE, step_s=0.25)
    bench.round_trip_s = 0.0
    bench.answers['/a'] = {'status': Status.POLICY_ERROR, 'status_text': 'no memory'}
    bench.run(1.1)
    assert [at_s for at_s, _, _ in bench.requests] == [0, 0.25, 0.5, 0.75, 1.0]
    assert bench.pipeline.status.last_failure == 'server error: no memory'
    assert bench.drops == {'policy_error': 5}


def test_a_timeout_opens_a_new_session_and_the_late_answer_does_not_count(start):
    bench = start(servers=('/a', '/b'), request_timeout_s=1.0)
    request = bench.request()
    bench.now_ns = 1001 * MS
    bench.inbox.put_reply(b'anything wakes the thread')
    second = bench.request()
    assert bench.transport.opened == [('/a', 0), ('/b', 1)]
    assert second.header.session_epoch == 1
    assert second.header.flags == Flag.EPISODE_START
    assert second.episode_id == request.episode_id
    bench.answer(request, 9 * CHUNK)
    bench.answer(second)
    bench.request()
    assert bench.drops == {'encapsulation': 1, 'request_timeout': 1, 'stale_epoch': 1}
    assert played(bench) == CHUNK.tolist()


def test_a_flood_of_other_answers_does_not_put_off_the_timeout(start):
    bench = start(servers=('/a', '/b'), request_timeout_s=1.0)
    request = bench.request()
    for number in range(50):
        bench.now_ns = number * 21 * MS
        bench.answer(request, client_id='robot_2')
    assert bench.request().header.session_epoch == 1


def test_a_new_episode_drops_the_answer_in_flight(start):
    bench = start()
    request = bench.request()
    bench.requester.begin_episode(EpisodeRequest('wash'))
    second = bench.request()
    assert bench.transport.resets == [(0, 1, second.episode_id)]
    assert second.episode_id != request.episode_id
    assert (second.header.episode, second.header.flags) == (1, Flag.EPISODE_START)
    assert (second.task, bench.pipeline.status.task) == ('wash', 'wash')
    bench.answer(request, 9 * CHUNK)
    bench.answer(second)
    third = bench.request()
    assert (third.header.flags, third.episode_id) == (Flag.NONE, second.episode_id)
    assert bench.drops == {'stale_episode': 1}
    assert played(bench) == CHUNK.tolist()


@pytest.mark.parametrize('episode_s', [0.3, 0.7, 0.9])
def test_episodes_shorter_than_the_timeout_do_not_hide_a_silent_server(episode_s):
    bench = Simulation(servers=('/a', '/b'), request_timeout_s=1.0, max_consecutive_timeouts=2)
    bench.answers['/a'] = None
    bench.transport.on_probe = lambda on_reply: on_reply()
    for number in range(1, 20):
        bench.at(number * episode_s, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(4.0)
    assert [server for server, _ in bench.transport.opened][:2] == ['/a', '/b']
    first_of_b_s = next(at_s for at_s, server, _ in bench.requests if server == '/b')
    # two timeouts, each seen at the end of an episode
    assert 2.0 <= first_of_b_s <= 2.0 + 2 * episode_s


def test_short_episodes_of_a_server_that_replies_count_no_timeouts():
    bench = Simulation(servers=('/a', '/b'), request_timeout_s=1.0, max_consecutive_timeouts=1)
    bench.round_trip_s = 0.4
    for number in range(1, 20):
        # each ends while a request is under way, after a reply
        bench.at(number * 0.7, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(6.0)
    assert bench.transport.opened == [('/a', 0)]


def test_a_slow_server_whose_replies_come_in_the_next_episode_is_not_left():
    bench = Simulation(servers=('/a', '/b'), request_timeout_s=2.0, max_consecutive_timeouts=1)
    # longer than an episode: each reply is of the one before
    bench.round_trip_s = 1.1
    for number in range(1, 20):
        bench.at(number * 0.7, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(10.0)
    assert bench.transport.opened == [('/a', 0)]
    assert bench.drops['stale_episode'] > 5


def test_time_without_a_reply_does_not_count_against_the_next_server():
    bench = Simulation(servers=('/a', '/b'), request_timeout_s=1.0, max_consecutive_timeouts=2)
    bench.answers |= {'/a': None, '/b': None}
    for number in range(1, 40):
        bench.at(number * 0.7, lambda: bench.requester.begin_episode(EpisodeRequest()))
    bench.run(20.0)
    first, second = (
        next(at_s for at_s, server, _ in bench.requests if server == name) for name in ('/a', '/b')
    )
    back = next(at_s for at_s, server, _ in bench.requests if server == '/a' and at_s > second)
    assert back - second >= second - first - 0.7


def test_a_new_episode_leaves_nothing_of_the_old_one_to_play():
    bench = Bench()
    source = ChunkSource(1, 0, 0, 'episode', 0, 'prod', 'act@0')
    bench.actions.append(CHUNK, source, mark=bench.actions.mark())
    bench.requester.begin_episode(EpisodeRequest())
    assert bench.actions.take() is None
    assert bench.actions.rows_cleared == 2


def test_an_episode_without_a_session_begins_and_nobody_is_told():
    bench = Simulation(ServerUnreachable('no server'), servers=ONE)
    bench.at(0.1, lambda: bench.requester.begin_episode(EpisodeRequest('wash', 'wash-7')))
    bench.run(1.0)
    assert bench.transport.resets == []
    _, _, request = bench.requests[0]
    assert (request.episode_id, request.task) == ('wash-7', 'wash')


def test_of_two_episodes_begun_at_once_the_later_one_counts():
    bench = Simulation(servers=ONE)
    bench.requester.begin_episode(EpisodeRequest('wash'))
    bench.requester.begin_episode(EpisodeRequest('fold'))
    bench.run(0.5)
    assert {request.task for _, _, request in bench.requests} == {'fold'}


def block_on_answer(bench: Bench) -> None:
    bench.thread.start()
    bench.request()


def block_on_backoff(bench: Bench) -> None:
    failed = threading.Event()
    failing = bench.servers.mark_failed

    def fail(reason: str, **kind: bool) -> float:
        failing(reason, **kind)
        failed.set()
        return 60.0

    bench.servers.mark_failed = fail
    bench.transport.refusals['/policy_server'] = ServerUnreachable('no server')
    bench.thread.start()
    assert failed.wait(10)


def block_on_rest(bench: Bench) -> None:
    bench.requester.set_idle(idle=True)
    bench.thread.start()


@pytest.mark.parametrize('block', [block_on_answer, block_on_backoff, block_on_rest])
def test_close_ends_the_thread_whatever_it_waits_for(block):
    bench = Bench()
    block(bench)
    bench.requester.close()
    bench.thread.join(5.0)
    assert not bench.thread.is_alive()


def test_close_leaves_the_session_that_is_open_and_no_other():
    bench = Simulation(servers=('/a', '/b'))
    bench.transport.refusals['/a'] = ServerUnreachable('no server')
    bench.run(0.5)
    assert bench.transport.left == ['/b']
    bench = Simulation(servers=ONE)
    bench.transport.refusals['/a'] = ServerUnreachable('no server')
    bench.run(0.5)
    assert bench.transport.left == []


def test_a_missing_input_is_named_and_nothing_is_sent():
    bench = Bench()
    bench.parts.history = ObservationHistory(LatestInputs({'front': 1}))
    assert bench.pipeline.send_request(bench.settings) is None
    assert bench.pipeline.status.waiting_for == 'no message received yet for front'
    assert bench.pipeline.status.requests_sent == 0
    assert bench.drops == {}


def test_what_cannot_be_sent_is_counted_and_the_next_observation_is(start):
    bench = Bench()
    bench.observations.errors += [
        Malformed('missing_joint', 'no elbow'),
        InputsNotReady('front is 2 s old'),
        Unencodable('a camera of 16 bits'),
    ]
    start(bench)
    bench.answer(bench.request())
    assert bench.request().header.flags == Flag.NONE
    assert bench.drops == {'missing_joint': 1, 'unencodable': 1}
    assert bench.pipeline.status.waiting_for == ''


def test_a_request_that_breaks_the_contract_is_counted_and_not_in_flight():
    bench = Bench()
    bench.requester._connect()
    bench.pipeline.status.task = 'x' * 5000
    assert bench.pipeline.send_request(bench.settings) is None
    assert bench.session.in_flight is None
    assert bench.drops == {'unencodable': 1}
    assert '5000 bytes' in bench.pipeline.status.waiting_for
    bench.pipeline.status.task = ''
    assert bench.pipeline.send_request(bench.settings).header.seq == 2
    assert bench.request().header.flags == Flag.EPISODE_START


def test_without_inputs_it_looks_for_them_a_few_times_a_second_and_says_so():
    bench = Simulation(servers=ONE)
    bench.parts.history = ObservationHistory(LatestInputs({'front': 1}))
    bench.run(2.0)
    assert bench.transport.opened == [('/a', 0)]
    assert bench.requests == []
    assert len(bench.waits) <= 101
    assert bench.connection.state == ConnectionState.CONNECTING


# one timeout is not a lost session; a late answer to the latest request counts; first contact


MISFIT = SessionRefused(Refusal.ACTION_NAMES, 'arm_0.pos is not joint_0.pos')


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
    assert bench.changes[-1].at_ns >= 20 * 10**9


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


# a robot whose quota is used up waits as long as the server says, and stays with that server


USED_UP = {'status': Status.QUOTA, 'status_text': 'quota of robot * is used up'}


def refused_for(seconds: float) -> dict:
    return {**USED_UP, 'extensions': (retry_after(seconds),)}


def simulation(**settings: object) -> Simulation:
    bench = Simulation(servers=('/a', '/b'), **settings)
    bench.round_trip_s = 0.0
    return bench


def times(bench: Simulation) -> list[float]:
    return [round(at_s, 3) for at_s, _, _ in bench.requests]


def test_the_next_request_comes_after_the_time_that_the_server_names():
    bench = simulation()
    bench.answers['/a'] = refused_for(0.75)
    bench.run(2.0)
    assert times(bench) == pytest.approx([0, 0.75, 1.5], abs=0.02)


def test_it_stays_with_a_server_whose_quota_is_used_up():
    bench = simulation()
    bench.answers['/a'] = refused_for(0.1)
    bench.run(5.0)
    assert len(bench.requests) > 20
    assert {server for _, server, _ in bench.requests} == {'/a'}
    assert bench.transport.opened == [('/a', 0)]
    assert bench.drops == {'quota': len(bench.requests)}
    assert bench.pipeline.status.last_failure == 'server error: quota of robot * is used up'


def test_it_streams_again_once_it_is_admitted():
    bench = simulation()
    bench.answers['/a'] = refused_for(0.3)
    bench.at(0.2, bench.answers.clear)
    bench.run(1.0)
    assert times(bench)[:2] == pytest.approx([0, 0.3], abs=0.02)
    assert bench.connection.state == ConnectionState.STREAMING
    assert bench.pipeline.status.last_failure == ''


def test_an_absurd_time_holds_a_robot_back_no_longer_than_the_limit():
    bench = simulation()
    bench.answers['/a'] = refused_for(1e9)
    bench.run(2.5 * MAX_HOLD_S)
    assert times(bench) == pytest.approx([0, 10, 20], abs=0.02)


def test_a_refusal_without_a_time_is_a_reply_without_actions():
    bench = simulation()
    bench.answers['/a'] = bench.answers['/b'] = USED_UP
    bench.run(0.45)
    assert times(bench) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4], abs=0.01)


def test_an_operator_who_begins_an_episode_does_not_wait_for_the_quota():
    bench = simulation()
    bench.answers['/a'] = refused_for(5.0)
    bench.at(1.0, lambda: bench.requester.begin_episode(EpisodeRequest('again', 'second')))
    bench.run(3.0)
    assert bench.pipeline.status.episode_id == 'second'
    # the server would refuse it: the request itself still waits
    assert times(bench) == [0]
