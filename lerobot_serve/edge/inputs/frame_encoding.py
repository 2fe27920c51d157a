# SPDX-License-Identifier: Apache-2.0
"""Encode the frames of an observation for the wire. Pure functions; the request thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.schema import Codec

# raw message of a camera -> its pixels, or an image that can be sent unchanged
FrameReader = Callable[[str, bytes], np.ndarray | Image]


def encode_frames(
    moments: tuple[HistoryStep, ...],
    cameras: dict[str, str],
    images: ImageCodecPool,
    codec: Codec,
    quality: int,
    *,
    opened: FrameReader,
) -> tuple[Image, ...]:
    """
    Return the frames of all history steps, ordered by step, then camera.

    `cameras` maps the robot's camera names to the policy's. One call encodes all frames in
    parallel; a frame in several steps is decoded and encoded once. Raises Malformed or
    Unencodable.
    """
    rows = [(name, moment) for moment in moments for name in cameras]
    ready: dict[tuple[str, int], Image] = {}
    labels: dict[tuple[str, int], str] = {}
    frames: dict[str, np.ndarray] = {}
    for name, moment in reversed(rows):
        raw = moment.snapshot.values[name]
        key = name, id(raw)
        if key in ready or key in labels:
            continue
        frame = opened(name, raw)
        if isinstance(frame, Image):
            ready[key] = frame
        else:
            # name of the frame in error texts
            labels[key] = f'{cameras[name]}, {moment.steps_back} steps back'
            frames[labels[key]] = frame
    encoded = _encoded(frames, images, codec, quality)
    ready |= {key: encoded[label] for key, label in labels.items()}
    return tuple(
        replace(
            ready[name, id(moment.snapshot.values[name])],
            name=cameras[name],
            steps_back=moment.steps_back,
        )
        for name, moment in rows
    )


def _encoded(
    frames: dict[str, np.ndarray], images: ImageCodecPool, codec: Codec, quality: int
) -> dict[str, Image]:
    """Encode frames; 16-bit depth is sent raw, since JPEG cannot hold it."""
    deep = {label: frame for label, frame in frames.items() if frame.dtype != np.uint8}
    flat = {label: frame for label, frame in frames.items() if label not in deep}
    encoded = dict(zip(flat, images.encode_all(flat, codec, quality), strict=True))
    return encoded | dict(zip(deep, images.encode_all(deep, Codec.RAW, quality), strict=True))
