"""Frames no larger than the policy looks at. Pure functions; the request thread calls them."""

from __future__ import annotations

import cv2
import numpy as np


def downscale(frame: np.ndarray, height: int, width: int) -> np.ndarray:
    """
    Return a frame of exactly this size, which the server would make of it: it stretches.

    A frame that is not larger in both directions stays as it is, as does every frame where the
    size is 0: any. To enlarge it would only make it travel longer.
    """
    if not (0 < height < frame.shape[0] and 0 < width < frame.shape[1]):
        return frame
    small = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    # a frame of one channel loses its axis
    return small.reshape(height, width, frame.shape[2])
