# SPDX-License-Identifier: Apache-2.0
"""Downscale frames to the input size of the policy. Pure functions; the request thread."""

from __future__ import annotations

import cv2
import numpy as np


def downscale(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """
    Return the frame resized to exactly this size, stretched as the server would.

    A frame that is not larger in both directions stays unchanged, as does every frame for a size
    of 0 (any): enlarging would only cost bandwidth.
    """
    if not (0 < height < frame.shape[0] and 0 < width < frame.shape[1]):
        return frame
    small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    # a frame of one channel loses its axis
    return small.reshape(height, width, frame.shape[2])
