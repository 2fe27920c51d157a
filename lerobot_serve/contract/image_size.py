# SPDX-License-Identifier: Apache-2.0
"""Scale frames to the size that a policy takes. Pure; any thread."""

from __future__ import annotations

import cv2

from lerobot_serve.arrays import FrameArray


def downscale(frame: FrameArray, height: int, width: int) -> FrameArray:
    """
    Return the frame resized to exactly this size, stretched as the server would.

    A frame that is not larger in both directions stays unchanged, as does every frame for a size
    of 0 (any): enlarging would only cost bandwidth.
    """
    return resized(frame, height, width) if is_larger(frame, height, width) else frame


def resized(frame: FrameArray, height: int, width: int) -> FrameArray:
    """Return the frame in this size; each pixel is the mean of the area that it covers."""
    if frame.shape[:2] == (height, width):
        return frame
    scaled = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    # a frame of one channel loses its axis
    return scaled.astype(frame.dtype, copy=False).reshape(height, width, frame.shape[2])


def is_larger(frame: FrameArray, height: int, width: int) -> bool:
    """Return whether `downscale` changes the frame."""
    return 0 < height < frame.shape[0] and 0 < width < frame.shape[1]
