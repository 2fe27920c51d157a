# SPDX-License-Identifier: Apache-2.0
"""Scale and encode the frames of an observation. Pure functions; the request thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np

from lerobot_serve.arrays import FrameArray
from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.schema import Codec

# raw message of a camera -> its pixels, or an image that can be sent unchanged
FrameReader = Callable[[str, bytes], FrameArray | Image]


def encode_frames(
    steps: tuple[HistoryStep, ...],
    cameras: dict[str, str],
    images: ImageCodecPool,
    codec: Codec,
    quality: int,
    *,
    read_frame: FrameReader,
) -> tuple[Image, ...]:
    """
    Return the frames of all history steps, ordered by step, then camera.

    `cameras` maps the robot's camera names to the policy's. One call encodes all frames in
    parallel; a frame in several steps is decoded and encoded once. Raises Malformed or
    Unencodable.
    """
    rows = [(name, step) for step in steps for name in cameras]
    ready: dict[tuple[str, int], Image] = {}
    labels: dict[tuple[str, int], str] = {}
    frames: dict[str, FrameArray] = {}
    for name, step in reversed(rows):
        raw = step.snapshot.values[name]
        key = name, id(raw)
        if key in ready or key in labels:
            continue
        frame = read_frame(name, raw)
        if isinstance(frame, Image):
            ready[key] = frame
        else:
            # name of the frame in error texts
            labels[key] = f'{cameras[name]}, {step.steps_back} steps back'
            frames[labels[key]] = frame
    encoded = _encoded(frames, images, codec, quality)
    ready |= {key: encoded[label] for key, label in labels.items()}
    return tuple(
        replace(
            ready[name, id(step.snapshot.values[name])],
            name=cameras[name],
            steps_back=step.steps_back,
        )
        for name, step in rows
    )


def _encoded(
    frames: dict[str, FrameArray], images: ImageCodecPool, codec: Codec, quality: int
) -> dict[str, Image]:
    """Encode frames; 16-bit depth is sent raw, since JPEG cannot hold it."""
    deep = {label: frame for label, frame in frames.items() if frame.dtype != np.uint8}
    flat = {label: frame for label, frame in frames.items() if label not in deep}
    encoded = dict(zip(flat, images.encode_all(flat, codec, quality), strict=True))
    return encoded | dict(zip(deep, images.encode_all(deep, Codec.RAW, quality), strict=True))


def downscale(frame: FrameArray, height: int, width: int) -> FrameArray:
    """
    Return the frame resized to exactly this size, stretched as the server would.

    A frame that is not larger in both directions stays unchanged, as does every frame for a size
    of 0 (any): enlarging would only cost bandwidth.
    """
    if not (0 < height < frame.shape[0] and 0 < width < frame.shape[1]):
        return frame
    resized = cv2.resize(frame, (width, height), interpolation=cv2.INTER_AREA)
    small = resized.astype(frame.dtype, copy=False)
    # a frame of one channel loses its axis
    return small.reshape(height, width, frame.shape[2])
