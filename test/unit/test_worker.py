"""The worker: every request is answered with a chunk, or with the reason why there is none."""

from __future__ import annotations

from dataclasses import replace
import queue
import threading

import numpy as np
import pytest
from worker_rig import (
    ASK,
    bench,
    FRAME,
    FRONT,
    HEADER,
    JPEG,
    OBSERVATION,
    SESSION,
)

from lerobot_serve.policies.base import Prediction
from lerobot_serve.server.mailbox import Mailbox
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.content import ACTION_VALUES_LIMIT
from lerobot_serve.wire.schema import Flag, MsgType, Status, TEXT_LIMIT

WAIT_S = 10.0


def test_an_answer_echoes_the_header_and_says_who_answered():
    made = bench()
    chunk = made.answer(OBSERVATION)
    assert chunk.header == replace(HEADER, msg_type=MsgType.CHUNK, flags=Flag.NONE)
    assert (chunk.client_id, chunk.episode_id) == ('robot_1', 'episode_1')
    assert (chunk.slot, chunk.policy) == ('a', 'fake@0123456789abcdef')
    assert (chunk.status, chunk.status_text, chunk.superseded) == (Status.OK, '', 4)
    assert np.array_equal(chunk.robot, np.resize(OBSERVATION.state, (4, 3)))
    assert np.array_equal(chunk.model, chunk.robot)
    assert made.statistics.chunks == 1


def test_durations_are_measured_and_not_negative():
    chunk = bench().answer(OBSERVATION)
    assert (chunk.queue_wait_ms, chunk.processing_ms, chunk.inference_ms) == (1.0, 1.0, 1.0)
    assert 0 < chunk.server_load <= 1


def test_the_policy_sees_what_was_sent():
    made = bench()
    made.answer(OBSERVATION)
    made.answer(replace(OBSERVATION, task='dance', images=(JPEG,)))
    first, second = made.policy.calls
    assert (first.session_id, first.task) == ('robot_1#7', 'fold the towel')
    assert np.array_equal(first.state, OBSERVATION.state)
    assert np.array_equal(first.images[FRONT], FRAME)
    assert second.task == 'dance'
    assert second.images[FRONT].shape == FRAME.shape


def raises(error: Exception):
    def predict(_):
        raise error

    return predict


def gives(model, robot=None):
    return lambda _: Prediction(model, model if robot is None else robot)


ROWS = np.zeros((4, 3), np.float32)
POLICY_FAILURES = [
    (raises(RuntimeError('out of memory')), 'policy_error', 'RuntimeError: out of memory'),
    (raises(RuntimeError('a\0b \udcff' + 'ü' * 2000)), 'policy_error', 'a b ?ü'),
    (lambda _: None, 'policy_error', 'NoneType'),
    (gives(None), 'policy_error', 'the model chunk must be rows x 3 actions, got ()'),
    (gives([['x']]), 'policy_error', 'the policy raised ValueError'),
    (gives(ROWS[:0]), 'policy_error', 'the model chunk must be rows x 3 actions, got (0, 3)'),
    (gives(ROWS[0]), 'policy_error', '(3,)'),
    (gives(ROWS[:, :2]), 'policy_error', '(4, 2)'),
    (gives(ROWS, ROWS[:, :2]), 'policy_error', 'the robot chunk must be'),
    (gives(ROWS, ROWS[:3]), 'policy_error', '4 rows, the robot chunk 3'),
    (gives(ROWS + np.nan), 'not_finite', 'the model chunk holds NaN'),
    (gives(ROWS, ROWS - np.inf), 'not_finite', 'the robot chunk holds NaN or infinity'),
    (gives(np.full((4, 3), 1e300)), 'not_finite', 'the model chunk'),
]


@pytest.mark.parametrize(('predict', 'reason', 'words'), POLICY_FAILURES)
def test_a_failing_policy_is_answered_for_and_counted(predict, reason, words):
    made = bench(predict)
    chunk = made.answer(OBSERVATION)
    assert chunk.status == Status[reason.upper()]
    assert words in chunk.status_text
    assert len(chunk.status_text.encode()) <= TEXT_LIMIT
    assert made.statistics.drop_counts() == {reason: 1}
    assert made.statistics.chunks == 0
    assert not chunk.robot.size


@pytest.mark.parametrize('predictions', [[], [Prediction(ROWS, ROWS)] * 2])
def test_a_wrong_number_of_predictions_is_the_policys_error(predictions, monkeypatch):
    made = bench()
    monkeypatch.setattr(made.policy, 'predict', lambda requests: predictions)
    assert made.answer(OBSERVATION).status == Status.POLICY_ERROR


def test_a_double_precision_chunk_is_sent_as_floats():
    chunk = bench(gives([[0.1, 0.2, 0.3]])).answer(OBSERVATION)
    assert np.array_equal(chunk.robot, np.array([[0.1, 0.2, 0.3]], np.float32))


def test_an_ended_session_is_forgotten_before_the_next_inference():
    made = bench()
    made.answer(OBSERVATION)
    made.worker.forget('robot_1#7')
    made.worker.forget('robot_2#1')
    assert len(made.policy.calls) == 1
    made.answer(OBSERVATION)
    assert made.policy.calls[1:3] == ['robot_1#7', 'robot_2#1']
    assert len(made.policy.calls) == 4


def test_warming_up_counts_in_no_statistic_and_is_forgotten():
    made = bench()
    made.worker.warm_up(2)
    assert made.statistics == Statistics(_lock=made.statistics._lock)
    made.answer(OBSERVATION)
    assert made.policy.calls[2] == 'warm-up'
    assert made.policy.calls[0].images[FRONT].shape == FRAME.shape


def test_the_thread_answers_each_on_its_topic_survives_and_ends_on_close():
    made, mailbox, sent = bench(), Mailbox(), queue.SimpleQueue()
    thread = threading.Thread(
        target=made.worker.run, args=(mailbox, lambda topic, raw: sent.put((topic, raw)))
    )
    thread.start()
    try:
        mailbox.put(SESSION, b'not a message', 0)
        for wanted in (replace(OBSERVATION, images=()), OBSERVATION):
            mailbox.put(SESSION, wire_observation.encode(wanted), 0)
            topic, raw = sent.get(timeout=WAIT_S)
            assert topic == '/robot_1/chunk'
        assert wire_chunk.decode(raw).status == Status.OK
    finally:
        mailbox.close()
        thread.join(WAIT_S)
    assert not thread.is_alive()


def test_an_answer_that_no_message_can_hold_is_counted_and_the_next_one_is_sent():
    endless = np.zeros((ACTION_VALUES_LIMIT // 3 + 1, 3), np.float32)
    chunks = iter([endless, ROWS])
    made, mailbox, sent = bench(lambda _: Prediction(*[next(chunks)] * 2)), Mailbox(), []
    for name in ('robot_1', 'robot_2'):
        robot = replace(SESSION, ask=replace(ASK, client_id=name))
        mailbox.put(robot, wire_observation.encode(OBSERVATION), 0)

    def send(topic: str, raw: bytes) -> None:
        sent.append(wire_chunk.decode(raw))
        mailbox.close()

    made.worker.run(mailbox, send)
    assert [chunk.status for chunk in sent] == [Status.OK]
    assert made.statistics.drop_counts() == {'unanswerable': 1}
