# SPDX-License-Identifier: Apache-2.0
"""What a LeRobot policy makes of an observation, and which ones it refuses."""

import numpy as np
import pytest
from support.replacing import replace

torch = pytest.importorskip('torch', reason='torch is not installed (TORCH=none)')
pytest.importorskip('lerobot', reason='LeRobot is not installed')

from support.policies.lerobot_rig import loaded, requests_for  # noqa: E402

from lerobot_serve.policies.base import PolicyError  # noqa: E402


def test_frames_of_another_size_are_scaled_for_those_that_need_it():
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    tall = {name: (np.full((96, 128, 3), 90, np.uint8),) for name in request.images}
    small = {name: (np.full((48, 64, 3), 90, np.uint8),) for name in request.images}
    scaled, exact = (
        policy.predict([replace(request, images=images)])[0] for images in (tall, small)
    )
    np.testing.assert_array_equal(scaled.model, exact.model)


@pytest.fixture
def every_warning():
    """Make torch warn each time, not once a process."""
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)


@pytest.mark.filterwarnings('error')
@pytest.mark.usefixtures('every_warning')
def test_frames_that_may_not_be_written_to_are_taken():
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    expected = policy.predict([request])[0].model
    for frames in request.images.values():
        frames[0].flags.writeable = False
    np.testing.assert_array_equal(policy.predict([request])[0].model, expected)


def wrong_state(request):
    return {'state': request.state[:, :3]}


def wrong_history(request):
    return {'state': np.repeat(request.state, 2, axis=0)}


def no_camera(request):
    return {'images': {}}


def grey_camera(request):
    return {'images': {name: (np.zeros((48, 64, 1), np.uint8),) for name in request.images}}


def float_camera(request):
    return {'images': {name: (np.zeros((48, 64, 3), np.float32),) for name in request.images}}


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        (wrong_state, r'the state must be 1 x 6 \(steps x values\), got \(1, 3\)'),
        (wrong_history, r'the state must be 1 x 6 \(steps x values\), got \(2, 6\)'),
        (no_camera, 'must have 1 frames, got 0'),
        (grey_camera, r'must give height x width x 3 of uint8, got \(48, 64, 1\) of uint8'),
        (float_camera, 'must give height x width x 3 of uint8, got .* of float32'),
    ],
)
def test_a_wrong_request_is_refused(wrong, said):
    policy = loaded('act')
    request = requests_for(policy, 1)[0]
    with pytest.raises(PolicyError, match=said):
        policy.predict([replace(request, **wrong(request))])
