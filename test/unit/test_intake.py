"""The intake: what is wrong in an observation stops there, with its reason."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from worker_rig import (
    bench,
    FRAME,
    FRONT,
    HEADER,
    JPEG,
    OBSERVATION,
    PREFIX,
    RAW,
    SESSION,
)

from lerobot_serve.wire import images
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.content import Image
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Codec, Flag, MsgType, Status


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
    ({'images': (RAW, JPEG)}, 'doubled_camera', f"'{FRONT}' is there twice for 0 steps back"),
    ({'images': (RAW, *2 * (replace(RAW, name='side'),))}, 'doubled_camera', "'side'"),
    ({'images': (RAW, *2 * (replace(RAW, steps_back=2),))}, 'doubled_camera', '2 steps back'),
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


def test_a_camera_may_be_there_once_for_each_time():
    earlier = (replace(RAW, steps_back=1), replace(RAW, steps_back=2))
    assert bench().answer(replace(OBSERVATION, images=(RAW, *earlier))).status == Status.OK


def test_another_schema_than_that_of_the_session_is_refused_with_both():
    made = bench()
    other = replace(OBSERVATION, header=replace(HEADER, schema_version=7))
    chunk = made.answer(other)
    assert chunk.status == Status.BAD_OBSERVATION
    assert chunk.status_text == 'schema_version 7 is not the 1 of the session'
    assert made.statistics.drop_counts() == {'schema_version': 1}
    assert made.answer(other, replace(SESSION, schema_version=7)).status == Status.OK


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
