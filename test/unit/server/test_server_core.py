# SPDX-License-Identifier: Apache-2.0
"""Serving: requests on their way to the policy, and the ends that they may come to before."""

from __future__ import annotations

import math
import threading
import time

from hypothesis import example, given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.replacing import replace
from support.server.request_queue_rig import inference, WAIT_S
from support.server.server_core_rig import request, Rig
from support.server.session_rig import RULES
from support.server.worker_rig import gives, ROWS

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.chunk import Chunk, retry_after_s
from lerobot_serve.contract.schema import MsgType, Refusal, Status
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.policies.base import Prediction
from lerobot_serve.quotas import parse_quotas
from lerobot_serve.server.core import bounded_ns
from lerobot_serve.server.inference.inference_loop import ReplySender

GOODBYE = SessionRefused(Refusal.DRAINING, 'the server is going away')


@pytest.fixture
def rig() -> Rig:
    """A server with the session of one robot."""
    made = Rig()
    made.open()
    return made


def test_a_request_is_answered_for_its_session():
    rig = Rig()
    session = rig.open()
    assert rig.core.enqueue(request(left_s=2.0), 5) is None
    (queued,) = rig.request_queue.take_batch()
    assert queued.session is session
    assert (queued.arrived_ns, queued.runs_dry_ns) == (5, 2_000_000_005)
    assert queued.header.seq == 3
    assert rig.statistics.requests == 1
    assert rig.drops == {}


def test_a_request_that_takes_the_place_of_another_one_is_counted(rig):
    for seq in (1, 2):
        rig.core.enqueue(request(seq=seq), 0)
    assert (rig.statistics.requests, rig.statistics.superseded) == (2, 1)
    (chunk,) = rig.step()
    assert (chunk.header.seq, chunk.superseded) == (2, 1)


def test_a_request_is_a_sign_of_life():
    rig = Rig()
    session = rig.open()
    rig.core.enqueue(request(), 60 * 10**9)
    assert rig.core.sessions.close_expired(61 * 10**9, lambda _: False) == []
    rig.core.enqueue(request(2), 120 * 10**9)
    assert rig.core.sessions.close_expired(130 * 10**9, lambda _: False) == [
        (session, 'session_idle')
    ]


CHUNK = {'msg_type': MsgType.CHUNK}
UNUSABLE = [
    (request(2), 'no_session'),
    (request(session_epoch=8), 'no_session'),
    (request(**CHUNK), 'wrong_type'),
    (request(2, **CHUNK), 'no_session'),
    (b'', 'encapsulation'),
    (request()[:20], 'truncated'),
    (request()[: request().index(b'episode_1') + 12], 'truncated'),
    (b'\x00\x00' + request()[2:], 'encapsulation'),
    (request().replace(b'robot_1\x00', b'robot_\xff\x00'), 'not_utf8'),
    (request().replace(b'robot_1\x00', b'robot_11'), 'not_a_string'),
]


@pytest.mark.parametrize(('raw', 'reason'), UNUSABLE)
def test_what_is_no_request_of_a_session_is_dropped_and_counted(rig, raw, reason):
    assert rig.core.enqueue(raw, 0) is None
    assert rig.drops == {reason: 1}
    assert (len(rig.request_queue), rig.statistics.requests) == (0, 0)


def test_a_robot_whose_session_is_not_known_is_told_so_at_once(rig):
    answers = rig.no_session_replies
    for now_ns in (0, 1, 10**9):
        rig.core.enqueue(request(2), now_ns)
    rig.core.enqueue(request(2, **CHUNK), 2 * 10**9)
    assert [chunk.status for chunk in answers] == [Status.NO_SESSION] * 2
    assert answers[0].client_id == 'robot_2'
    assert 'open a session' in answers[0].status_text


@pytest.mark.parametrize('refusal', [GOODBYE, None])
def test_a_server_that_takes_nothing_says_so_at_once(refusal):
    rig = Rig()
    session = rig.open()
    if refusal:
        rig.core.stop_accepting(refusal)
    else:
        # configured, not yet active
        rig = Rig(begun=False)
        rig.core.sessions.open(session.request, 0, 1)
        refusal = SessionRefused(Refusal.NOT_READY, 'configured, not active')
    answered, chunk = rig.core.enqueue(request(), 1)
    assert answered.session.request is session.request
    assert (chunk.status, chunk.header.seq) == (Status.DRAINING, 3)
    assert str(refusal) in chunk.status_text
    assert chunk.policy == rig.core.description.fingerprint
    assert rig.drops == {'draining': 1}
    assert len(rig.request_queue) == 0
    with pytest.raises(SessionRefused) as refused:
        rig.open(2)
    assert refused.value.code == refusal.code


def test_what_waits_when_the_server_goes_away_is_still_answered(rig):
    rig.core.enqueue(request(), 0)
    rig.core.stop_accepting(GOODBYE)
    assert not rig.core.drain(0.0)
    with inference(rig.request_queue, rig.worker.process):
        assert rig.core.drain(WAIT_S)
    assert rig.statistics.chunks == 1


def test_at_the_very_end_who_still_waits_is_told_so(rig):
    rig.core.enqueue(request(), 0)
    # not while it serves
    assert rig.core.abort_waiting() == []
    rig.core.stop_accepting(GOODBYE)
    ((queued, chunk),) = rig.core.abort_waiting()
    assert (queued.header.seq, chunk.status, chunk.status_text) == (
        3,
        Status.DRAINING,
        str(GOODBYE),
    )
    assert (len(rig.request_queue), rig.drops) == (0, {'draining': 1})
    assert rig.core.abort_waiting() == []


def test_the_end_of_a_session_drops_what_waits_and_is_told_to_the_policy_in_its_thread():
    rig = Rig()
    first, second = rig.open(1), rig.open(2)
    rig.core.enqueue(request(1), 0)
    rig.core.end_sessions([first, second], 'session_ended')
    assert rig.drops == {'session_ended': 1}
    assert rig.policy.calls == []
    rig.open(3)
    rig.core.enqueue(request(3), 0)
    (chunk,) = rig.step()
    assert chunk.client_id == 'robot_3'
    assert rig.policy.calls[:2] == [first.session_id, second.session_id]


def test_an_episode_begins_without_what_waited_and_with_a_policy_that_has_forgotten():
    rig = Rig()
    session = rig.open()
    rig.core.enqueue(request(episode=2), 0)
    rig.core.start_episode(session, 3)
    assert rig.drops == {'episode_ended': 1}
    assert len(rig.request_queue) == 0
    assert rig.policy.calls == []
    rig.core.enqueue(request(episode=3), 0)
    rig.step()
    reset, asked = rig.policy.calls
    assert (reset, asked.episode) == (session.session_id, 3)


def test_the_first_request_of_an_episode_may_come_before_the_word():
    rig = Rig()
    session = rig.open()
    rig.core.enqueue(request(episode=3), 0)
    rig.core.start_episode(session, 3)
    assert rig.drops == {}
    assert [chunk.header.episode for chunk in rig.step()] == [3]


def test_word_that_comes_late_ends_nothing_of_the_episode_that_it_begins():
    rig = Rig()
    session = rig.open()
    rig.core.enqueue(request(episode=3), 0)
    rig.step()
    rig.core.start_episode(session, 3)
    rig.core.enqueue(request(episode=3), 0)
    rig.step()
    assert rig.resets == []
    rig.core.start_episode(session, 4)
    rig.core.enqueue(request(episode=4), 0)
    rig.step()
    assert rig.resets == [session.session_id]


def test_an_answer_is_sent_only_while_its_session_is_open(rig):
    rig.core.enqueue(request(), 0)
    (queued,) = rig.request_queue.take_batch()
    assert rig.core.is_open(queued)
    rig.open(session_epoch=8)
    assert not rig.core.is_open(queued)


def test_changes_reach_sessions_and_the_order_of_service():
    rig = Rig()
    rig.open(1)
    rig.open(2)
    times = {'session_grace_s': 1e-9, 'session_idle_s': 2e-9}
    more = {'default_task': 'other', 'scheduler': 'lowest_queue_first'}
    rig.core.apply_parameters(replace(RULES, max_sessions=1, **times, **more))
    changed = rig.core.sessions.rules
    assert (changed.max_sessions, changed.session_grace_ns, changed.session_idle_ns) == (1, 1, 2)
    # a task cannot change under a session
    assert changed.default_task == RULES.default_task
    with pytest.raises(SessionRefused):
        rig.open(3)
    rig.core.enqueue(request(1, left_s=1.0), 0)
    rig.core.enqueue(request(2, left_s=0.5), 0)
    assert [chunk.client_id for _ in 'ab' for chunk in rig.step()] == ['robot_2', 'robot_1']


def test_closing_answers_who_waits_in_the_thread_of_the_policy(monkeypatch):
    rig, go, answers, threads = Rig(), threading.Event(), [], []
    session, call = rig.open(), rig.request_queue.run_job

    def use(chunk) -> None:
        answers.append(chunk)
        threads.append(threading.get_ident())

    def call_and_go(job, timeout_s):
        go.set()
        return call(job, timeout_s)

    monkeypatch.setattr(rig.request_queue, 'run_job', call_and_go)
    with inference(rig.request_queue, rig.worker.process):
        rig.request_queue.submit_job(lambda: go.wait(WAIT_S))
        rig.core.enqueue(request(), 0)
        assert rig.core.enqueue_one_shot('one#1', request(9), 0, use) is None
        rig.core.stop_accepting(GOODBYE)
        rig.core.close(WAIT_S)
        # the policy is asked for nothing any more, and forgets all
        assert rig.policy.calls == [session.session_id, 'one#1']
    assert [(chunk.status, chunk.status_text) for chunk in answers] == [
        (Status.DRAINING, str(GOODBYE))
    ]
    assert threads[0] != threading.get_ident()
    assert rig.drops == {'session_ended': 1, 'draining': 1}


def test_closing_does_not_wait_for_ever_for_a_policy_that_hangs():
    rig, go = Rig(), threading.Event()
    with inference(rig.request_queue):
        rig.request_queue.submit_job(lambda: go.wait(WAIT_S))
        with pytest.raises(TimeoutError):
            rig.core.close(0.0)
        go.set()


@given(st.floats())
@example(math.nan)
@example(math.inf)
@example(-math.inf)
@example(-0.0)
def test_whatever_a_robot_says_it_has_left_is_a_time_within_a_minute(seconds):
    left_ns = bounded_ns(seconds)
    assert type(left_ns) is int
    assert 0 <= left_ns <= 60_000_000_000
    if 0 <= seconds <= 60:
        assert left_ns == int(1e9 * seconds)
    if seconds > 60:
        assert left_ns == 60_000_000_000


def test_a_used_up_quota_is_refused_with_its_time_and_reaches_no_policy():
    rig = Rig()
    rig.open(1)
    rig.open(2)
    rig.core.quotas.apply(parse_quotas(['robot *: 1 requests/s']), 1.0)
    assert rig.core.enqueue(request(seq=1), 0) is None
    arrival = rig.core.enqueue(request(seq=2), 0)
    assert arrival and arrival.refusal.status == Status.QUOTA
    assert arrival.refusal.header.seq == 2
    assert 'quota of robot * is used up' in arrival.refusal.status_text
    assert 0 < retry_after_s(arrival.refusal) < 0.01
    assert rig.core.enqueue(request(2), 0) is None
    # the earlier request of the robot was not replaced
    assert sorted(chunk.header.seq for _ in range(2) for chunk in rig.step()) == [1, 3]
    assert rig.drops == {'quota': 1}


def test_a_one_shot_request_counts_for_the_quota_of_its_client():
    rig, replies = Rig(), []
    rig.core.quotas.apply(parse_quotas(['robot *: 1 requests/s']), 1.0)
    assert rig.core.enqueue_one_shot('goal#1', request(), 0, replies.append) is None
    refused = rig.core.enqueue_one_shot('goal#2', request(), 0, replies.append)
    assert refused and refused.status == Status.QUOTA and retry_after_s(refused) > 0


UNENCODABLE = {
    'a time beyond float32': lambda _: Prediction(ROWS, ROWS, forward_ms=1e39),
    'too many values': gives(np.zeros((400_000, 3), np.float32)),
}


@pytest.mark.parametrize('predict', UNENCODABLE.values(), ids=UNENCODABLE)
def test_what_cannot_be_encoded_is_answered_with_a_policy_error(predict):
    rig, replies, published = Rig(predict), [], []
    sender = ReplySender(
        lambda _, raw, __: not published.append(wire_chunk.decode(raw)),
        rig.statistics,
        rig.observer,
    )
    rig.core.enqueue_one_shot('goal#1', request(), 0, replies.append)
    rig.open(1)
    rig.core.enqueue(request(seq=1), 0)
    for _ in range(2):
        for queued, chunk in rig.core.worker.process(rig.request_queue.take_batch()):
            sender.send(rig.core, queued, chunk)
    for chunk in (*replies, *published):
        assert chunk.status == Status.POLICY_ERROR
        assert 'returned a chunk that cannot be sent' in chunk.status_text
        # encodable for the link of the caller
        wire_chunk.encode(chunk)
    assert len(replies) == len(published) == 1
    assert rig.drops == {'policy_error': 2}


def test_a_caller_that_cannot_be_replied_to_is_counted():
    def refuse(chunk: Chunk) -> None:
        raise ConnectionError('the caller has gone')

    rig = Rig()
    sender = ReplySender(lambda *_: True, rig.statistics, rig.observer)
    rig.core.enqueue_one_shot('goal#1', request(), 0, refuse)
    ((queued, chunk),) = rig.core.worker.process(rig.request_queue.take_batch())
    sender.send(rig.core, queued, chunk)
    assert rig.drops == {'unanswerable': 1}
    assert rig.statistics.latency.sum_s == 0


def test_inference_is_charged_when_the_reply_is_sent():
    rig = Rig()
    rig.open(1)
    rig.core.quotas.apply(parse_quotas(['robot *: 1 inference_ms/s']), 1.0)
    sender = ReplySender(lambda *_: True, rig.statistics, rig.observer)
    rig.core.enqueue(request(seq=1), 0)
    for queued, chunk in rig.core.worker.process(rig.request_queue.take_batch()):
        sender.send(rig.core, queued, replace(chunk, inference_ms=5.0))
    arrival = rig.core.enqueue(request(seq=2), time.monotonic_ns())
    assert arrival and 3.0 < retry_after_s(arrival.refusal) <= 4.0
