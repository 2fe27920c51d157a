"""The requester's sessions: what it asks, what it accepts, and how an episode's start is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from requester_rig import Bench, CHUNK, MS, starting

from lerobot_serve.edge.answers import check_agreement
from lerobot_serve.edge.link import Agreement
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.preparation import pace_warnings, session_ask
from lerobot_serve.edge.robot import load, Robot
from lerobot_serve.wire.schema import Codec, Flag, SCHEMA_VERSION, Status
from lerobot_serve.wire.session import CameraSpec, Refused, SessionAsk


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


@pytest.fixture
def robot(repository: Path) -> Robot:
    return load(repository / 'config' / 'robots' / 'sim_arm.yaml')


@pytest.mark.parametrize(('steps', 'stride_steps'), [(1, 1), (1, 5000), (1001, 1), (501, 2)])
def test_a_history_that_a_robot_can_keep_is_agreed_on(steps, stride_steps):
    check_agreement(Agreement(SCHEMA_VERSION, steps, stride_steps))


IMPOSSIBLE = [
    (0, 1, '0 observations a request, 1 control steps apart'),
    (2, 0, '2 observations a request, 0 control steps apart'),
    (1002, 1, 'reach 1001 steps back; a robot keeps 1000'),
    (2, 1001, 'reach 1001 steps back; a robot keeps 1000'),
]


@pytest.mark.parametrize(('steps', 'stride_steps', 'text'), IMPOSSIBLE)
def test_a_history_that_it_cannot_is_refused_and_asked_for_again(steps, stride_steps, text):
    with pytest.raises(Refused, match=text):
        check_agreement(Agreement(SCHEMA_VERSION, steps, stride_steps))
    bench, told = Bench(), []
    bench.link.agreement = Agreement(SCHEMA_VERSION, steps, stride_steps)

    def mend(_: float) -> None:
        told.append((bench.requester.progress.refused, bench.requester.progress.connected))
        bench.link.agreement = Agreement(SCHEMA_VERSION)

    bench.hook_waits(mend)
    with starting() as begin:
        begin(bench)
        request = bench.request()
    assert text in told[0][0]
    assert not told[0][1]
    assert request.header.session_epoch == 1
    assert bench.requester.progress.refused == ''


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


def test_the_start_is_told_again_when_the_first_request_was_lost(start):
    bench = start(request_timeout_s=1.0)
    for epoch in (0, 1, 2):
        request = bench.request()
        assert (request.header.session_epoch, request.header.flags) == (epoch, Flag.EPISODE_START)
        bench.now_ns += 1001 * MS
        bench.requester.on_chunk(b'anything wakes the thread')


def test_a_chunk_of_the_old_episode_does_not_end_the_start_of_the_new_one(start):
    bench = start()
    old = bench.request()
    bench.requester.reset()
    new = bench.request()
    bench.answer(old)
    bench.answer(new, status=Status.POLICY_ERROR)
    request = bench.request()
    assert (request.header.episode, request.header.flags) == (1, Flag.EPISODE_START)


def ask(robot: Robot, **changes: object) -> SessionAsk:
    parameters = EdgeParameters(task='reach', policy='act', **changes)
    return session_ask(
        parameters, robot, client_id='robot_1', instance=7, epoch=3, reply_topic='/reply'
    )


def test_it_asks_for_what_the_robot_is(robot):
    asked = ask(robot, codec='raw')
    assert (asked.client_id, asked.instance, asked.session_epoch) == ('robot_1', 7, 3)
    assert (asked.reply_topic, asked.robot_type, asked.fps) == ('/reply', 'sim_arm', 30.0)
    assert (asked.task, asked.policy, asked.codec) == ('reach', 'act', Codec.RAW)
    assert asked.state_names == robot.state_names
    assert asked.action_names == robot.action_names
    assert asked.cameras == tuple(
        CameraSpec(f'observation.images.{name}') for name in ('front', 'wrist')
    )


@pytest.mark.parametrize(('timeout_s', 'age_s', 'within_s'), [(5.0, 3.0, 3.0), (2.0, 3.0, 2.0)])
def test_an_answer_is_of_use_until_it_is_given_up_or_too_old(robot, timeout_s, age_s, within_s):
    asked = ask(robot, request_timeout_s=timeout_s, max_action_age_s=age_s)
    assert asked.answer_within_s == within_s


@pytest.mark.parametrize(('chunk_size', 'warns'), [(15, True), (16, False)])
def test_chunks_that_are_shorter_than_the_buffer_are_worth_a_warning(robot, chunk_size, warns):
    texts = pace_warnings(EdgeParameters(buffer_time_s=0.5), robot, chunk_size)
    assert bool(texts) == warns
    assert all('buffer_time_s is 0.5' in text for text in texts)


def test_a_session_opened_again_in_mid_episode_does_not_say_that_the_episode_begins(start):
    bench = Bench()
    start(bench)
    first = bench.request()
    assert first.header.flags & Flag.EPISODE_START
    bench.answer(first)
    bench.actions.clear()
    bench.answer(bench.request(), status=Status.NO_SESSION)
    again = bench.request()
    assert again.header.session_epoch != first.header.session_epoch
    assert not again.header.flags & Flag.EPISODE_START
