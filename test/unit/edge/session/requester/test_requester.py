# SPDX-License-Identifier: Apache-2.0
"""The requester: one request at a time, and no answer but its own is ever played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.requester_rig import Bench, CHUNK, MS, played, starting

from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag, Status
from lerobot_serve.edge.queue.action_queue import ChunkSource
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import ReplyResult
from lerobot_serve.edge.session.settings import EpisodeRequest
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes

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
    bench = start(append=False, step_s=0.01)
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
    bench = start(append=False, step_s=0.001)
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
        bench.pipeline.begin_episode(EpisodeRequest(), notify_server=False)
        names.add(bench.send_request().episode_id)
    assert len(names) == 3


@given(st.data())
def test_no_bytes_make_it_raise_or_play_what_is_not_finite(data):
    bench = Bench()
    raw = bytearray(reply_bytes(bench.send_request(), CHUNK))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.just(len(raw)) | st.integers(0, len(raw)))
    outcome = bench.pipeline.on_reply(bytes(raw[:end]), 0, bench.settings).result
    rows = played(bench)
    assert (len(rows) > 0) == (outcome is ReplyResult.MERGED)
    assert bench.drops or outcome is ReplyResult.MERGED
    assert np.isfinite(rows).all()
    assert all(len(row) == 3 for row in rows)
