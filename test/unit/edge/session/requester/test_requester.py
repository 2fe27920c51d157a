# SPDX-License-Identifier: Apache-2.0
"""The requester: one request at a time, and no answer but its own is ever played."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.requester_rig import Bench, CHUNK, MS, played, Simulation, starting
from support.replacing import replace

from lerobot_serve.contract.data_path import execution_report as wire_executed
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.schema import Codec, Flag, MsgType, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.edge.action_queue import ChunkSource
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.session.request import check_agreement, OK
from lerobot_serve.edge.session.transport.fake_transport import agreed, reply_bytes

SOURCE = ChunkSource(1, 0, 0, 'episode', 0, 'prod', 'act@0')


@pytest.fixture
def start():
    with starting() as begin:
        yield begin


def test_it_opens_a_session_and_asks(start):
    bench = start()
    request = bench.request()
    # the epoch after the first one wraps around
    assert bench.transport.opened == [('/policy_server', 0)]
    assert (request.header.session_epoch, request.header.seq) == (0, 1)
    assert (request.header.episode, request.header.flags) == (0, Flag.EPISODE_START)
    assert (request.client_id, request.task) == ('robot_1', 'fold the towel')
    assert request.episode_id == 'robot_1-ffffffff-0001'
    assert np.array_equal(request.state, np.zeros((1, 3)))
    assert bench.pipeline.status.server == '/policy_server'
    assert bench.connection.state == ConnectionState.CONNECTING


def test_it_asks_one_at_a_time_and_plays_what_was_answered(start):
    bench = start()
    for seq in (1, 2, 3):
        request = bench.request()
        assert request.header.seq == seq
        assert request.header.flags == (Flag.EPISODE_START if seq == 1 else Flag.NONE)
        assert bench.transport.requests_waiting == 0
        bench.answer(request, CHUNK + seq)
    bench.request()
    assert bench.pipeline.status.chunks_accepted == 3
    assert played(bench) == [row for seq in (1, 2, 3) for row in (CHUNK + seq).tolist()]
    assert bench.drops == {}
    assert bench.states == ['STREAMING']


def header(change: str) -> Callable[[Observation], dict]:
    """Return what makes an answer whose header counts one more or less."""
    name, by = change.split()

    def changes(request: Observation) -> dict:
        echoed: Header = request.header.for_reply(Flag.NONE)
        return {'header': replace(echoed, **{name: (getattr(echoed, name) + int(by)) % 2**32})}

    return changes


NOT_ITS_OWN = [
    (header('session_epoch -1'), 'stale_epoch'),
    (header('session_epoch +1'), 'stale_epoch'),
    (header('episode +1'), 'stale_episode'),
    (header('seq +1'), 'late_chunk'),
    (header('seq -1'), 'late_chunk'),
    (header('msg_type -1'), 'wrong_type'),
    (lambda request: {'client_id': 'robot_2'}, 'other_client'),
]


@pytest.mark.parametrize(('changes', 'reason'), NOT_ITS_OWN)
def test_an_answer_that_is_not_its_own_is_dropped_and_the_request_stays(start, changes, reason):
    bench = start()
    request = bench.request()
    bench.answer(request, 9 * CHUNK, **changes(request))
    bench.answer(request)
    bench.request()
    assert bench.drops == {reason: 1}
    assert played(bench) == CHUNK.tolist()


NOT_USABLE = [
    ({'robot': CHUNK * np.nan}, 'not_finite'),
    ({'robot': CHUNK - np.array([np.inf, 0, 0])}, 'not_finite'),
    ({'robot': CHUNK[:, :2]}, 'wrong_shape'),
    ({'robot': CHUNK[:0]}, 'wrong_shape'),
    ({'robot': CHUNK.reshape(6, 1)}, 'wrong_shape'),
    ({'status': Status.POLICY_ERROR}, 'policy_error'),
    ({'status': Status.BAD_OBSERVATION}, 'bad_observation'),
    ({'status': 200}, 'unknown_status'),
]


@pytest.mark.parametrize(('changes', 'reason'), NOT_USABLE)
def test_an_answer_without_usable_actions_is_dropped_and_it_asks_again(start, changes, reason):
    bench = start()
    request = bench.request()
    bench.answer(request, **{'robot': 9 * CHUNK, **changes})
    second = bench.request()
    assert (second.header.seq, second.header.session_epoch) == (2, request.header.session_epoch)
    bench.answer(request, 9 * CHUNK)
    bench.answer(second)
    bench.request()
    assert bench.drops == {reason: 1, 'late_chunk': 1}
    assert played(bench) == CHUNK.tolist()


def test_while_enough_is_left_to_play_it_does_not_ask():
    bench = Bench(step_s=1.0, request_threshold_s=1.0)
    bench.actions.append(CHUNK, SOURCE, mark=bench.actions.mark())
    bench.inbox.put_reply(b'ends the wait')
    bench.requester._request_chunk()
    assert bench.pipeline.status.requests_sent == 0
    assert bench.drops == {'encapsulation': 1}


def test_replace_skips_what_was_lived_through_during_the_round_trip(start):
    bench = start(merge_mode='replace', step_s=0.01)
    bench.now_ns = 90 * MS
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    bench.answer(bench.request(), rows)
    request = bench.request()
    bench.actions.take()
    bench.actions.take()
    bench.now_ns += 15 * MS
    bench.answer(request, 2 * rows)
    bench.request()
    assert played(bench) == (2 * rows[2:]).tolist()


def test_a_first_chunk_is_played_from_its_first_row(start):
    bench = start(merge_mode='replace', step_s=0.001)
    request = bench.request()
    bench.now_ns = 500 * MS
    bench.answer(request)
    bench.request()
    assert played(bench) == CHUNK.tolist()


def test_what_is_played_knows_where_it_came_from(start):
    bench = start()
    bench.inputs.deposit('state', np.zeros(3, np.float32), 0)
    request = bench.request()
    bench.now_ns = 20 * MS
    bench.answer(
        request, slot='b', policy='act@0', queue_wait_ms=2.0, processing_ms=1.0, inference_ms=5.0
    )
    bench.request()
    source = bench.actions.take().source
    assert (source.seq, source.session_epoch, source.episode) == (1, 0, 0)
    assert (source.captured_ns, source.slot, source.policy) == (0, 'b', 'act@0')
    assert source.episode_id == request.episode_id
    status = bench.pipeline.status
    assert (status.round_trip_ms, status.network_ms) == (20.0, 12.0)
    assert (status.slot, status.policy) == ('b', 'act@0')


@pytest.mark.parametrize('client_id', ['a' * 128, 'ü' * 64, 'x' + 'ü' * 63])
def test_a_long_name_still_gives_episodes_names_of_their_own(client_id):
    bench, names = Bench(client_id=client_id), set()
    for _ in range(3):
        bench.pipeline.begin_episode(EpisodeRequest())
        names.add(bench.send_request().episode_id)
    assert len(names) == 3


@given(st.data())
def test_no_bytes_make_it_raise_or_play_what_is_not_finite(data):
    bench = Bench()
    raw = bytearray(reply_bytes(bench.send_request(), CHUNK))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
    ended = bench.pipeline.on_reply(bytes(raw[:end]), 0, bench.settings)
    is_merged = ended is not None and ended.status == OK
    rows = played(bench)
    assert (len(rows) > 0) == is_merged
    assert bench.drops or is_merged
    assert np.isfinite(rows).all()
    assert all(len(row) == 3 for row in rows)


# the requester when a policy looks back: what it sends, and how old that is


FRAME = Image('front', 2, 2, bytes(range(12)), Codec.RAW)


class LookingBack(Bench):
    """A requester whose server wants 3 observations, 2 control steps apart."""

    def __init__(self, **pace: object) -> None:
        super().__init__(**pace)
        self.transport.agreement = agreed(observation_steps=3, observation_stride_steps=2)
        self.observations.images = (FRAME,)
        self.step = 0

    def live(self, steps: int = 1) -> None:
        """Let control steps of 10 ms pass, with the number of the step as the robot's state."""
        for _ in range(steps):
            self.step += 1
            self.now_ns += 10 * MS
            self.inputs.deposit('state', np.full(3, self.step, np.float32), self.now_ns)
            self.history.record(self.step, self.now_ns)


def rows(request: Observation) -> list[float]:
    assert request.state.shape == (3, 3)
    return request.state[:, 0].tolist()


def test_a_request_carries_the_observations_that_the_server_asked_for(start):
    bench = start(LookingBack())
    request = bench.request()
    # no control step has passed since the session was opened
    assert rows(request) == [0, 0, 0]
    bench.live(7)
    bench.answer(request)
    request = bench.request()
    assert rows(request) == [3, 5, 7]
    assert [(image.name, image.steps_back) for image in request.images] == [
        ('front', 4),
        ('front', 2),
        ('front', 0),
    ]
    bench.live(3)
    bench.answer(request)
    assert rows(bench.request()) == [6, 8, 10]


def test_what_is_played_is_as_old_as_the_present_observation(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(7)
    bench.answer(request)
    request = bench.request()
    assert played(bench)
    bench.live(1)
    bench.answer(request)
    bench.request()
    assert bench.actions.take().source.captured_ns == 70 * MS


def test_after_a_reset_nothing_of_the_old_episode_is_sent(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(7)
    bench.requester.begin_episode(EpisodeRequest())
    request = bench.request()
    assert request.header.episode == 1
    assert rows(request) == [7, 7, 7]
    bench.live(3)
    bench.answer(request)
    assert rows(bench.request()) == [8, 8, 10]


def test_a_new_session_goes_on_with_the_history_of_the_episode(start):
    bench = start(LookingBack(request_timeout_s=1.0))
    bench.request()
    bench.live(7)
    bench.now_ns += 1000 * MS
    bench.inbox.put_reply(b'anything wakes the thread')
    request = bench.request()
    assert request.header.session_epoch == 1
    assert rows(request) == [3, 5, 7]


def test_a_gap_is_counted(start):
    bench = start(LookingBack())
    request = bench.request()
    bench.live(4)
    bench.step += 1
    bench.live(2)
    bench.answer(request)
    assert rows(bench.request()) == [6, 6, 7]
    assert bench.history.gaps == 1


def test_a_session_of_one_observation_sends_the_newest_of_everything_and_no_more():
    bench, sent = Bench(), []
    bench.observations.images, bench.transport.send = (FRAME,), sent.append
    bench.requester._connect()
    for step in range(5):
        bench.history.record(step, 0)
    bench.now_ns = 5 * MS
    bench.inputs.deposit('state', np.array([1, 2, 3], np.float32), 4 * MS)
    pending = bench.pipeline.send_request(bench.settings)
    header = Header(1, 5 * MS, 0, 0, SCHEMA_VERSION, MsgType.OBSERVATION, Flag.EPISODE_START)
    expected = Observation(
        header,
        'robot_1',
        'robot_1-ffffffff-0001',
        np.array([[1, 2, 3]], np.float32),
        (FRAME,),
        'fold the towel',
        extensions=(wire_executed.encode(bench.executed),),
    )
    assert [bytes(each) for each in sent] == [wire_observation.encode(expected)]
    assert pending.captured_ns == 4 * MS


# the requester's sessions: what it asks, what it accepts, and how an episode's start is told


@pytest.mark.parametrize(('steps', 'stride_steps'), [(1, 1), (1, 5000), (1001, 1), (501, 2)])
def test_a_history_that_a_robot_can_keep_is_agreed_on(steps, stride_steps):
    check_agreement(agreed(observation_steps=steps, observation_stride_steps=stride_steps))


IMPOSSIBLE = [
    (0, 1, '0 observations per request, 1 control steps apart'),
    (2, 0, '2 observations per request, 0 control steps apart'),
    (1002, 1, 'reach 1001 steps back; a robot keeps 1000'),
    (2, 1001, 'reach 1001 steps back; a robot keeps 1000'),
]


@pytest.mark.parametrize(('steps', 'stride_steps', 'text'), IMPOSSIBLE)
def test_a_history_that_it_cannot_is_refused_and_asked_for_again(steps, stride_steps, text):
    with pytest.raises(SessionRefused, match=text):
        check_agreement(agreed(observation_steps=steps, observation_stride_steps=stride_steps))
    bench, told = Simulation(servers=('/a',)), []
    bench.transport.agreement = agreed(
        observation_steps=steps, observation_stride_steps=stride_steps
    )

    def mend() -> None:
        told.append((bench.connection.reason, bench.pipeline.status.server))
        bench.transport.agreement = agreed()

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
