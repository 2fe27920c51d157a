# SPDX-License-Identifier: Apache-2.0
"""The intake: what is wrong in an observation stops there, with its reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
import numpy as np
import pytest
from support.replacing import replace
from support.server.worker_rig import (
    ASK,
    bench,
    FRAME,
    FRONT,
    HEADER,
    JPEG,
    OBSERVATION,
    PREFIX,
    RAW,
    ROWS,
    SESSION,
)

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.schema import Codec, Flag, MsgType, Status
from lerobot_serve.policies.base import PolicyCamera
from lerobot_serve.server.inference.request_validation import max_pixels


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
    ({'images': (replace(RAW, steps_back=1),)}, 'missing_camera', f"['{FRONT}']"),
    ({'images': (RAW, JPEG)}, 'doubled_camera', f"duplicate camera '{FRONT}' for 0 steps back"),
    ({'images': (RAW, *2 * (replace(RAW, name='side'),))}, 'doubled_camera', "'side'"),
    ({'images': (RAW, *2 * (replace(RAW, steps_back=2),))}, 'doubled_camera', '2 steps back'),
    ({'images': (replace(RAW, codec=9),)}, 'unknown_codec', 'got 9'),
    ({'images': (replace(JPEG, data=JPEG.data[:-20]),)}, 'bad_jpeg', FRONT),
    ({'images': (replace(JPEG, height=16),)}, 'wrong_shape', 'the message declares'),
    ({'images': (replace(RAW, height=60000, width=60000),)}, 'oversized_image', 'pixels'),
    ({'images': (replace(RAW, width=15),)}, 'wrong_shape', 'bytes cannot be'),
    (
        {'images': (image_codec.encode(FRONT, FRAME[:, :, :1], Codec.RAW),)},
        'wrong_shape',
        '3 channels of 8 bits, got 1',
    ),
    (
        {'images': (image_codec.encode(FRONT, FRAME.astype('u2'), Codec.RAW),)},
        'wrong_shape',
        'of 16',
    ),
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
    made, pinned = bench(), replace(SESSION, is_task_pinned=True)
    chunk = made.answer(replace(OBSERVATION, task='dance'), pinned)
    assert chunk.status == Status.BAD_OBSERVATION
    assert "'dance'" in chunk.status_text
    assert 'fold the towel' in chunk.status_text
    assert made.answer(replace(OBSERVATION, task='fold the towel'), pinned).status == Status.OK
    assert made.answer(OBSERVATION, pinned).status == Status.OK


HISTORY = {'observation_steps': 3, 'observation_stride_steps': 5}


def past(value: int, steps_back: int) -> Image:
    return image_codec.encode(FRONT, FRAME * 0 + value, Codec.RAW, steps_back=steps_back)


def test_a_history_reaches_the_policy_oldest_first_whatever_its_order():
    made = bench(**HISTORY)
    state = np.arange(9, dtype=np.float32).reshape(3, 3)
    sent = (past(0, 0), past(10, 10), past(7, 7), past(5, 5))
    assert made.answer(replace(OBSERVATION, state=state, images=sent)).status == Status.OK
    (request,) = made.policy.calls
    assert [frame[0, 0, 0] for frame in request.images[FRONT]] == [10, 5, 0]
    assert np.array_equal(request.state, state)


def test_the_cameras_of_a_history_are_not_mixed_up():
    cameras = tuple(PolicyCamera(name, 8, 16) for name in ('left', 'right'))
    made = bench(cameras=cameras, observation_steps=2)
    sent = [
        replace(past(value, back), name=name)
        for value, (name, back) in enumerate(
            [('right', 0), ('left', 1), ('right', 1), ('left', 0)]
        )
    ]
    observation = replace(OBSERVATION, state=ROWS[:2], images=tuple(sent))
    assert made.answer(observation).status == Status.OK
    (request,) = made.policy.calls
    seen = {name: [f[0, 0, 0] for f in frames] for name, frames in request.images.items()}
    assert seen == {'left': [1, 3], 'right': [2, 0]}


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ((0, 10), f"['{FRONT} 5 steps back']"),
        ((0,), f"['{FRONT} 10 steps back', '{FRONT} 5 steps back']"),
        ((5, 10), f"['{FRONT}']"),
        ((0, 1, 2), '10 steps back'),
    ],
)
def test_a_missing_step_is_refused_and_named(given, words):
    made = bench(**HISTORY)
    sent = tuple(past(back, back) for back in given)
    chunk = made.answer(replace(OBSERVATION, state=ROWS[:3], images=sent))
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text
    assert made.statistics.drop_counts() == {'missing_camera': 1}


@pytest.mark.parametrize('steps', [1, 2, 4])
def test_a_state_of_another_number_of_steps_is_refused(steps):
    chunk = bench(cameras=(), **HISTORY).answer(replace(OBSERVATION, state=ROWS[:steps]))
    assert chunk.status == Status.BAD_OBSERVATION
    assert f'3 observations of 3 values, got {steps} of 3' in chunk.status_text


@pytest.mark.parametrize('codec', [Codec.JPEG, Codec.RAW], ids=lambda codec: codec.name)
def test_an_image_beyond_its_bound_is_refused_before_anything_is_decoded(codec, monkeypatch):
    made, decoded = bench(), []
    original = ImageCodecPool.decode_all
    monkeypatch.setattr(
        ImageCodecPool,
        'decode_all',
        lambda pool, given: decoded.append(given) or original(pool, given),
    )
    # the fake policy takes 8x16: the floor of a full HD frame is its bound
    for height, width, status in ((1080, 1920, Status.OK), (1081, 1920, Status.BAD_OBSERVATION)):
        frame = np.zeros((height, width, 3), np.uint8)
        chunk = made.answer(
            replace(OBSERVATION, images=(image_codec.encode(FRONT, frame, codec),))
        )
        assert chunk.status == status
    assert f'{FRONT} is 1081x1920, the policy takes 8x16 and at most 2073600' in chunk.status_text
    assert made.statistics.drop_counts() == {'oversized_image': 1}
    assert len(decoded) == 1


@pytest.mark.parametrize(
    ('height', 'width', 'limit'),
    [(0, 0, 2_073_600), (224, 224, 2_073_600), (1080, 1920, 8_294_400), (2000, 2000, 16_000_000)],
)
def test_the_bound_is_four_times_what_the_policy_takes_or_a_full_hd_frame(height, width, limit):
    assert max_pixels(PolicyCamera(FRONT, height, width)) == limit


# the prefix of a chunk that is being played: only for the policy that it came from


FINGERPRINT = 'fake@0123456789abcdef'


def prefixed(policy: str, **changes: object) -> Observation:
    content = {'prefix_model': PREFIX, 'prefix_robot': 2 * PREFIX, 'inference_delay_steps': 1}
    return replace(OBSERVATION, prefix_policy=policy, **{**content, **changes})


def test_a_prefix_of_the_same_policy_is_passed_on():
    made = bench(supports_rtc=True)
    chunk = made.answer(prefixed(FINGERPRINT))
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
        (FINGERPRINT, False, {}),
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


@pytest.mark.parametrize('which', ['prefix_model', 'prefix_robot'])
@pytest.mark.parametrize(
    ('prefix', 'reason', 'words'),
    [
        (PREFIX[:, :2], 'wrong_shape', 'must have 3 columns, got 2'),
        (np.nan * PREFIX, 'not_finite', 'NaN'),
        (PREFIX + np.inf, 'not_finite', 'infinity'),
        (np.zeros((5, 3), np.float32), 'wrong_shape', 'may have 4 rows, got 5'),
    ],
)
def test_a_broken_prefix_of_the_same_policy_is_refused(which, prefix, reason, words):
    made = bench(supports_rtc=True)
    chunk = made.answer(prefixed(FINGERPRINT, **{which: prefix}))
    assert chunk.status == Status.BAD_OBSERVATION
    assert words in chunk.status_text
    assert made.statistics.drop_counts() == {reason: 1}
    assert not made.policy.calls


def test_a_prefix_may_be_as_long_as_a_chunk():
    rows = np.zeros((4, 3), np.float32)
    chunk = bench(supports_rtc=True).answer(prefixed(FINGERPRINT, prefix_model=rows))
    assert chunk.status == Status.OK


@pytest.mark.parametrize(('told', 'passed_on'), [(0, 0), (1, 1), (2, 2), (3, 2), (2**32 - 1, 2)])
def test_nobody_has_lived_more_of_a_prefix_than_there_is(told, passed_on):
    made = bench(supports_rtc=True)
    made.answer(prefixed(FINGERPRINT, inference_delay_steps=told))
    assert made.policy.calls[0].inference_delay_steps == passed_on


@pytest.mark.parametrize(('asked', 'passed_on'), [(0, 0), (3, 3), (4, 4), (100, 4)])
def test_a_horizon_is_no_longer_than_a_chunk(asked, passed_on):
    made = bench(supports_rtc=True)
    made.answer(
        OBSERVATION, replace(SESSION, request=structs.replace(ASK, rtc_execution_horizon=asked))
    )
    assert made.policy.calls[0].execution_horizon == passed_on
