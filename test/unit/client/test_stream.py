# SPDX-License-Identifier: Apache-2.0
"""The stream of the blocking client: newest observation, newest prediction, all counted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.threads import in_thread
from support.waiting import wait_until

from lerobot_serve.client import ClientClosed, NotFinite, PolicyClient, PolicySession, TooLate
from lerobot_serve.client.fake_server import CAMERAS
from lerobot_serve.contract.schema import Status

IMAGES = {CAMERAS[0].name: np.zeros((4, 6, 3), np.uint8)}


@pytest.fixture
def session(server) -> Iterator[PolicySession]:
    with PolicyClient(server.connection()) as client:
        yield client.open()


def test_a_loop_reads_a_chunk_and_puts_what_it_sees(server, session):
    seen = []
    with session.stream() as stream:
        stream.put((0, 0), IMAGES)
        for chunk in stream:
            seen.append(chunk.actions[0, 0])
            if len(seen) == 5:
                break
            stream.put((len(seen), 0), IMAGES)
    assert seen == [0, 1, 2, 3, 4]
    assert (stream.superseded, stream.unread) == (0, 0)


def test_observations_that_a_newer_one_replaced_are_counted(server, session):
    server.holds = True
    with session.stream() as stream:
        stream.put((1, 1), IMAGES)
        wait_until(lambda: server.held, 'the first is sent')
        for number in (2, 3, 4):
            stream.put((number, number), IMAGES)
        server.answer()
        assert next(stream).actions[0, 0] == 1
        wait_until(lambda: server.held, 'the newest is sent')
        server.answer()
        assert next(stream).actions[0, 0] == 4
    assert stream.superseded == 2
    assert len(server.observations) == 2


def test_predictions_that_are_not_read_are_counted(server, session):
    with session.stream() as stream:
        for number in range(3):
            stream.put((number, 0), IMAGES)
            wait_until(lambda n=number: len(server.observations) == n + 1, 'it is requested')
            wait_until(lambda: not stream._is_busy, 'it is answered')
        newest = stream.latest()
        assert newest and newest.actions[0, 0] == 2
        assert stream.latest() is None
        assert stream.unread == 2


def test_an_error_is_raised_once_and_the_stream_goes_on(server, session):
    with session.stream() as stream:
        server.receive = lambda asked: server.answer(asked, status=Status.NOT_FINITE)
        stream.put((1, 1), IMAGES)
        with pytest.raises(NotFinite):
            next(stream)
        server.receive = server.answer
        stream.put((2, 2), IMAGES)
        assert next(stream).actions[0, 0] == 2


def test_a_fault_of_this_package_reaches_the_reader(server, session):
    def fail(asked) -> None:
        raise RuntimeError('a fault')

    server.receive = fail
    with session.stream() as stream:
        stream.put((1, 1), IMAGES)
        with pytest.raises(Exception, match='RuntimeError: a fault'):
            next(stream)


def test_waiting_without_an_observation_ends(session):
    with session.stream(timeout_s=0.05) as stream, pytest.raises(TooLate, match='call put'):
        next(stream)


def test_a_closed_stream_ends_the_loop_and_gives_its_request_up(server, session):
    server.holds = True
    stream = session.stream()
    stream.put((1, 1), IMAGES)
    wait_until(lambda: server.held, 'it is sent')
    stream.close()
    stream.close()
    with pytest.raises(ClientClosed):
        stream.put((1, 1), IMAGES)
    assert [chunk for chunk in stream if chunk] == []
    server.holds = False
    assert len(session.predict((1, 1), IMAGES)) == 3


def test_an_observation_is_that_of_the_moment_of_put(server, session):
    server.holds = True
    buffer = np.zeros((4, 6, 3), np.uint8)
    with session.stream() as stream:
        stream.put((0, 0), IMAGES)
        wait_until(lambda: server.held, 'the first is sent')
        stream.put((1, 1), {CAMERAS[0].name: buffer})
        buffer[:] = 200
        server.answer()
        wait_until(lambda: server.held, 'the second is sent')
        server.answer()
    assert not np.any(server.observations[1].images[0].data)


def test_a_closed_stream_leaves_the_predictions_of_others(server, session):
    server.holds = True
    with session.stream() as stream:
        other, results = in_thread(lambda: session.predict((1, 1), IMAGES))
        wait_until(lambda: server.held, 'it is sent')
        stream.put((2, 2), IMAGES)
        wait_until(lambda: session._plans.state.turns.waiting, 'that of the stream waits')
    server.answer()
    other.join()
    assert len(results[0]) == 3
    assert len(server.observations) == 1


def test_an_error_that_is_not_read_is_counted(server, session):
    answers = iter([{'status': Status.NOT_FINITE}, {}])
    server.receive = lambda asked: server.answer(asked, **next(answers))
    with session.stream() as stream:
        for number in range(2):
            stream.put((number, 0), IMAGES)
            wait_until(lambda n=number: session.counts['requests'] == n + 1, 'it is requested')
            wait_until(lambda: not stream._is_busy, 'it is answered')
        assert stream.latest()
        assert stream.unread == 1
