# SPDX-License-Identifier: Apache-2.0
"""Frames made smaller before they travel: as the server would, and never larger."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from lerobot_serve.contract.image_size import downscale


def picture(height: int, width: int, channels: int, kind: type = np.uint8) -> np.ndarray:
    values = np.random.default_rng(0).integers(0, 255, (height, width, channels))
    return values.astype(kind)


@pytest.mark.parametrize(('channels', 'kind'), [(1, np.uint8), (3, np.uint8), (1, np.uint16)])
def test_a_larger_frame_is_what_the_server_would_make_of_it(channels, kind):
    frame = picture(48, 64, channels, kind)
    small = downscale(frame, 24, 20)
    assert (small.shape, small.dtype) == ((24, 20, channels), frame.dtype)
    expected = cv2.resize(frame, (20, 24), interpolation=cv2.INTER_AREA)
    assert np.array_equal(small, expected.reshape(24, 20, channels))


@pytest.mark.parametrize(
    ('height', 'width'), [(48, 64), (96, 128), (24, 64), (24, 128), (48, 32), (0, 0), (0, 32)]
)
def test_any_other_frame_stays_as_it_is(height, width):
    frame = picture(48, 64, 3)
    assert downscale(frame, height, width) is frame
