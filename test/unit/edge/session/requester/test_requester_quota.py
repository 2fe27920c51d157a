# SPDX-License-Identifier: Apache-2.0
"""A robot whose quota is used up waits as long as the server says, and stays with that server."""

from __future__ import annotations

import pytest
from support.edge.requester_rig import Simulation

from lerobot_serve.contract.data_path.chunk import retry_after
from lerobot_serve.contract.schema import Status
from lerobot_serve.edge.session import requester
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.settings import EpisodeRequest

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
    bench.run(2.5 * requester.MAX_HOLD_S)
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
