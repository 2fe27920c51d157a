"""The worker: every request is answered with a chunk, or with the reason why there is none."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
import queue
import threading

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.policies.base import Prediction
from lerobot_serve.policies.fake import FakePolicy, JOINTS
from lerobot_serve.server.mailbox import Mail, Mailbox
from lerobot_serve.server.sessions import Session
from lerobot_serve.server.statistics import Statistics
from lerobot_serve.server.worker import Worker
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import images
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.content import ACTION_VALUES_LIMIT, Image
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, Flag, MsgType, Status, TEXT_LIMIT
from lerobot_serve.wire.session import SessionAsk

WAIT_S = 10.0
FRONT = 'observation.images.front'
FRAME = np.arange(8 * 16 * 3, dtype=np.uint8).reshape(8, 16, 3)
HEADER = Header(3, -5, 7, 2, 1, MsgType.OBSERVATION, Flag.EPISODE_START | 128)
RAW = images.encode(FRONT, FRAME, Codec.RAW)
JPEG = images.encode(FRONT, FRAME, Codec.JPEG)
OBSERVATION = Observation(
    HEADER, 'robot_1', 'episode_1', np.array([[0.1, 0.2, 0.3]], np.float32), (RAW,)
)
ASK = SessionAsk('robot_1', 1, 7, '/robot_1/chunk', JOINTS, JOINTS, (), 30.0)
SESSION = Session(ASK, 'robot_1#7', 1, 'fold the towel', ())
PREFIX = np.full((2, 3), 0.5, np.float32)


class Bench:
    """One worker around one policy, with a clock that ticks a millisecond at each look."""

    def __init__(self, policy: FakePolicy) -> None:
        ticks = count(1_000_000, 1_000_000)
        self.policy, self.statistics = policy, Statistics()
        self.worker = Worker(
            policy,
            slot='a',
            statistics=self.statistics,
            image_threads=1,
            clock=lambda: next(ticks),
        )

    def answer(self, observation: Observation | bytes, session: Session = SESSION):
        raw = observation
        if isinstance(observation, Observation):
            raw = wire_observation.encode(observation)
        answer = self.worker.answer(Mail(session, raw, 0, 4))
        return wire_chunk.decode(wire_chunk.encode(answer))


def bench(predict=None, **changes: object) -> Bench:
    return Bench(FakePolicy(predict, **changes))


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


def test_a_camera_that_the_policy_does_not_want_is_not_looked_at():
    broken = Image('side', 8, 16, b'no JPEG', Codec.JPEG)
    assert bench().answer(replace(OBSERVATION, images=(broken, RAW))).status == Status.OK


LIFT_NAN = np.array([[0, np.nan, np.inf]], np.float32)
BAD = [
    ({'state': np.zeros((1, 2), np.float32)}, 'wrong_shape', '1 observations of 3'),
    ({'state': np.zeros((2, 3), np.float32)}, 'wrong_shape', 'got 2 of 3'),
    ({'state': LIFT_NAN}, 'not_finite', 'lift.pos is nan'),
    ({'images': ()}, 'missing_camera', FRONT),
    ({'images': (replace(RAW, name='side'),)}, 'missing_camera', FRONT),
    ({'images': (replace(RAW, steps_back=1),)}, 'missing_camera', FRONT),
    ({'images': (replace(RAW, codec=9),)}, 'unknown_codec', 'got 9'),
    ({'images': (replace(JPEG, data=JPEG.data[:-20]),)}, 'bad_jpeg', FRONT),
    ({'images': (replace(JPEG, height=16),)}, 'wrong_shape', 'announced'),
    ({'images': (replace(RAW, height=60000, width=60000),)}, 'wrong_shape', 'pixels'),
    ({'images': (replace(RAW, width=15),)}, 'wrong_shape', 'bytes cannot be'),
    (
        {'images': (images.encode(FRONT, FRAME[:, :, :1], Codec.RAW),)},
        'wrong_shape',
        '3 channels of 8 bits, got 1',
    ),
    ({'images': (images.encode(FRONT, FRAME.astype('u2'), Codec.RAW),)}, 'wrong_shape', 'of 16'),
]


@pytest.mark.parametrize(('changes', 'reason', 'words'), BAD)
def test_a_bad_observation_is_answered_with_its_reason_and_counted(changes, reason, words):
    made = bench()
    chunk = made.answer(replace(OBSERVATION, **changes))
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text
    assert made.statistics.drop_counts() == {reason: 1}
    assert chunk.header == replace(HEADER, msg_type=MsgType.CHUNK, flags=Flag.NONE)
    assert not chunk.robot.size
    assert not chunk.model.size
    assert chunk.queue_wait_ms == 1.0
    assert not made.policy.calls
    assert made.answer(OBSERVATION).status == Status.OK


@given(st.data())
def test_no_bytes_behind_the_names_make_the_worker_raise(data):
    raw = wire_observation.encode(replace(OBSERVATION, images=(JPEG,)))
    begin = raw.index(b'episode_1') + len('episode_1') + 1
    body = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(begin, len(raw) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(begin, len(raw)))
    made = bench()
    chunk = made.answer(bytes(body[:end]))
    assert chunk.status in (Status.OK, Status.BAD_OBSERVATION)
    assert (chunk.status == Status.OK) == (not made.statistics.drop_counts())


def test_a_pinned_task_refuses_requests_with_another_one():
    made, pinned = bench(), replace(SESSION, task_pinned=True)
    chunk = made.answer(replace(OBSERVATION, task='dance'), pinned)
    assert chunk.status == Status.BAD_OBSERVATION
    assert "'dance'" in chunk.status_text
    assert 'fold the towel' in chunk.status_text
    assert made.answer(replace(OBSERVATION, task='fold the towel'), pinned).status == Status.OK
    assert made.answer(OBSERVATION, pinned).status == Status.OK


def prefixed(policy: str, **changes: object) -> Observation:
    content = {'prefix_model': PREFIX, 'prefix_robot': 2 * PREFIX, 'inference_delay_steps': 1}
    return replace(OBSERVATION, prefix_policy=policy, **{**content, **changes})


def test_a_prefix_of_the_same_policy_is_passed_on():
    made = bench(supports_rtc=True)
    chunk = made.answer(prefixed('fake@0123456789abcdef'))
    (request,) = made.policy.calls
    assert chunk.header.flags == Flag.NONE
    assert np.array_equal(request.prefix_model, PREFIX)
    assert np.array_equal(request.prefix_robot, 2 * PREFIX)
    assert request.inference_delay_steps == 1


@pytest.mark.parametrize(
    ('policy', 'supports_rtc', 'changes'),
    [
        ('other@00', True, {}),
        ('', True, {}),
        ('fake', True, {}),
        ('fake@0123456789abcdef', False, {}),
        ('other@00', True, {'prefix_model': PREFIX[:0]}),
        ('other@00', True, {'prefix_robot': PREFIX[:0], 'prefix_model': np.nan * PREFIX}),
    ],
)
def test_a_prefix_never_crosses_policies_and_the_client_is_told(policy, supports_rtc, changes):
    made = bench(supports_rtc=supports_rtc)
    chunk = made.answer(prefixed(policy, **changes))
    (request,) = made.policy.calls
    assert (chunk.status, chunk.header.flags) == (Status.OK, Flag.PREFIX_IGNORED)
    assert not request.prefix_model.size
    assert not request.prefix_robot.size
    assert request.inference_delay_steps == 0


@pytest.mark.parametrize(
    ('prefix', 'words'), [(PREFIX[:, :2], '3 columns'), (np.nan * PREFIX, 'NaN')]
)
def test_a_broken_prefix_of_the_same_policy_is_refused(prefix, words):
    chunk = bench(supports_rtc=True).answer(prefixed('fake@0123456789abcdef', prefix_model=prefix))
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text


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
