# SPDX-License-Identifier: Apache-2.0
"""The requester's sessions: what it asks, what it accepts, and how an episode's start is told."""

from __future__ import annotations

import pytest
from support.edge.requester_rig import Bench, CHUNK, Simulation, starting

from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.edge.session.agreement import check_agreement
from lerobot_serve.edge.session.settings import EpisodeRequest
from lerobot_serve.edge.session.transport.transport import SessionAgreement


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


@pytest.mark.parametrize(('steps', 'stride_steps'), [(1, 1), (1, 5000), (1001, 1), (501, 2)])
def test_a_history_that_a_robot_can_keep_is_agreed_on(steps, stride_steps):
    check_agreement(SessionAgreement(SCHEMA_VERSION, steps, stride_steps))


IMPOSSIBLE = [
    (0, 1, '0 observations per request, 1 control steps apart'),
    (2, 0, '2 observations per request, 0 control steps apart'),
    (1002, 1, 'reach 1001 steps back; a robot keeps 1000'),
    (2, 1001, 'reach 1001 steps back; a robot keeps 1000'),
]


@pytest.mark.parametrize(('steps', 'stride_steps', 'text'), IMPOSSIBLE)
def test_a_history_that_it_cannot_is_refused_and_asked_for_again(steps, stride_steps, text):
    with pytest.raises(SessionRefused, match=text):
        check_agreement(SessionAgreement(SCHEMA_VERSION, steps, stride_steps))
    bench, told = Simulation(servers=('/a',)), []
    bench.transport.agreement = SessionAgreement(SCHEMA_VERSION, steps, stride_steps)

    def mend() -> None:
        told.append((bench.connection.reason, bench.pipeline.status.server))
        bench.transport.agreement = SessionAgreement(SCHEMA_VERSION)

    bench.at(0.1, mend)
    bench.run(1.0)
    ((reason, server),) = told
    assert text in reason
    assert server == ''
    assert {request.header.session_epoch for _, _, request in bench.requests} == {1}


NOT_PLAYED = [
    {'status': Status.POLICY_ERROR},
    {'status': Status.TOO_LATE},
    {'robot': CHUNK[:, :2]},
]


@pytest.mark.parametrize('changes', NOT_PLAYED)
def test_the_start_of_an_episode_is_told_until_a_chunk_of_it_is_played(start, changes):
    bench = start()
    for seq in (1, 2, 3):
        request = bench.request()
        assert (request.header.seq, request.header.flags) == (seq, Flag.EPISODE_START)
        bench.answer(request, **{'robot': CHUNK, **changes})
    bench.answer(bench.request())
    request = bench.request()
    assert request.header.flags == Flag.NONE
    bench.answer(request, **{'robot': CHUNK, **changes})
    assert bench.request().header.flags == Flag.NONE


def test_the_start_is_told_again_when_the_first_request_was_lost():
    bench = Simulation()
    bench.answers = {'/a': None, '/b': None}
    bench.run(2.2)
    seen = [(r.header.session_epoch, r.header.flags) for _, _, r in bench.requests]
    assert seen[:3] == [(epoch, Flag.EPISODE_START) for epoch in (0, 1, 2)]
    assert {flags for _, flags in seen[3:]} == {Flag.NONE}


def test_a_chunk_of_the_old_episode_does_not_end_the_start_of_the_new_one(start):
    bench = start()
    old = bench.request()
    bench.requester.begin_episode(EpisodeRequest())
    new = bench.request()
    bench.answer(old)
    bench.answer(new, status=Status.POLICY_ERROR)
    request = bench.request()
    assert (request.header.episode, request.header.flags) == (1, Flag.EPISODE_START)


def test_a_session_opened_again_in_mid_episode_does_not_say_that_the_episode_begins(start):
    bench = Bench()
    start(bench)
    first = bench.request()
    assert first.header.flags & Flag.EPISODE_START
    bench.answer(first)
    bench.answer(bench.request(), status=Status.NO_SESSION)
    again = bench.request()
    assert again.header.session_epoch != first.header.session_epoch
    assert not again.header.flags & Flag.EPISODE_START
