# SPDX-License-Identifier: Apache-2.0
"""A request and a prediction are checked where they are made; the text says what to change."""

from __future__ import annotations

import numpy as np
import pytest
from support.gateway.gateway_rig import CAMERA, request

from lerobot_serve.gateway.callers.caller import Caller, CLIENT_PREFIX
from lerobot_serve.gateway.callers.predictions import as_state, Prediction, PredictionError, Status
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.upstream import check_request

FRAME = np.zeros((2, 3, 3), np.uint8)


@pytest.mark.parametrize(
    ('changes', 'status', 'text'),
    [
        ({'state': np.zeros(3)}, Status.INVALID, 'vector of float32'),
        ({'state': np.zeros((1, 3), np.float32)}, Status.INVALID, 'vector of float32'),
        ({'state': [0.0]}, Status.INVALID, 'vector of float32'),
        ({'state': np.zeros(5000, np.float32)}, Status.INVALID, '5000 values, 4096'),
        ({'state': np.float32([0, np.nan, 0])}, Status.INVALID, 'state[1] is nan'),
        ({'state': np.float32([0, -np.inf])}, Status.INVALID, 'state[1] is -inf'),
        ({'images': {CAMERA: FRAME.astype(np.float32)}}, Status.INVALID, 'of float32'),
        ({'images': {CAMERA: FRAME[:, :, :1]}}, Status.INVALID, '(2, 3, 1)'),
        ({'images': {CAMERA: FRAME[:0]}}, Status.INVALID, '(0, 3, 3)'),
        ({'images': {'a\nb': FRAME}}, Status.INVALID, 'printable'),
        ({'images': {str(i): FRAME for i in range(65)}}, Status.INVALID, '65 images, 64'),
        ({'task': 'x' * 4097}, Status.INVALID, '4097 characters'),
        ({'episode_id': 'a\x1b[2J'}, Status.INVALID, 'episode_id must be printable'),
        ({'episode_id': 'x' * 129}, Status.INVALID, 'at most 128 bytes'),
        ({'timeout_s': -1.0}, Status.INVALID, 'timeout_s must be in [0, 3600], got -1'),
        ({'timeout_s': float('nan')}, Status.INVALID, 'got nan'),
        ({'inference_delay_steps': -1}, Status.INVALID, 'inference_delay_steps'),
    ],
)
def test_what_no_policy_accepts_is_refused(changes, status, text):
    with pytest.raises(PredictionError) as refused:
        request(**changes)
    assert refused.value.status is status
    assert text in refused.value.text


def test_a_request_may_have_no_image_and_an_empty_state():
    given = request(images={}, state=np.zeros(0, np.float32))
    assert not given.images
    assert not given.state.size


@pytest.mark.parametrize(
    ('actions', 'status'),
    [
        (np.float32([[0, np.nan]]), Status.NOT_FINITE),
        (np.float32([[np.inf]]), Status.NOT_FINITE),
        (np.zeros((0, 3), np.float32), Status.FAILED),
        (np.zeros(3, np.float32), Status.FAILED),
        (np.zeros((1, 3)), Status.FAILED),
    ],
)
def test_actions_that_must_not_be_executed_are_no_prediction(actions, status):
    with pytest.raises(PredictionError) as refused:
        Prediction(actions)
    assert refused.value.status is status


def test_a_state_is_made_of_numbers_only():
    assert as_state([[1, 2], [3, 4.5]]).tolist() == [1, 2, 3, 4.5]
    for wrong in ('text', [1, 'x'], [[1], [2, 3]], {'a': 1}):
        with pytest.raises(PredictionError, match='state must be numbers'):
            as_state(wrong)


def test_a_number_beyond_float32_is_a_wrong_state_and_infinity_stays_infinity():
    text = r'pose\[1\] is -1e\+39, at most 3\.4e\+38'
    with pytest.raises(PredictionError, match=text) as refused:
        as_state([np.nan, -1e39], 'pose')
    assert refused.value.status is Status.INVALID
    assert np.isinf(as_state(np.array([np.inf, 1.0]))[0])


@pytest.mark.parametrize(
    ('changes', 'text'),
    [
        ({'state': np.zeros(2, np.float32)}, 'state has 2 values, the policy takes 3: joint_1'),
        ({'images': {}}, f'needs the cameras {CAMERA}'),
        ({'images': {CAMERA: FRAME, 'side': FRAME}}, 'no cameras side, only ' + CAMERA),
    ],
)
def test_a_request_must_fit_the_policy(changes, text):
    check_request(request(), EXAMPLE_CONTRACT)
    with pytest.raises(PredictionError, match=text):
        check_request(request(**changes), EXAMPLE_CONTRACT)


def test_each_caller_has_a_name_of_its_own_that_fits_a_message():
    ids = [
        Caller('openpi', '10.0.0.5:4000').client_id,
        Caller('openpi', '10.0.0.5:4001').client_id,
        Caller('http', '10.0.0.5:4000').client_id,
        Caller('http', '10.0.0.5:4000', 'anna').client_id,
        Caller('http', '10.0.0.5:4000', 'a\nb').client_id,
        Caller('http', '10.0.0.5:4000', 'a\rb').client_id,
        Caller('http', '10.0.0.5:4000', 'x' * 200).client_id,
        Caller('http', '10.0.0.5:4001', 'x' * 200).client_id,
        Caller('http', '10.0.0.5:4001', '\ud800').client_id,
    ]
    assert ids[3] == 'gateway/http/anna@10.0.0.5:4000'
    assert len(set(ids)) == len(ids)
    for each in ids:
        assert each.startswith(CLIENT_PREFIX)
        assert each.isprintable()
        assert len(each.encode()) <= 128
