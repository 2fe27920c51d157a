"""The frames of an observation in wire form. Pure functions; the request thread calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lerobot_serve.edge.inputs.history import HistoryStep
from lerobot_serve.wire.image_codec import ImageCodecPool
from lerobot_serve.wire.message_parts import Image
from lerobot_serve.wire.schema import Codec

# what arrived on a camera's topic -> its pixels, or the frame where it can be sent as it is
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
    Return the frames of all moments, in the order of the moments and then of the cameras.

    `cameras` has the robot's name of each and the policy's. All are encoded in one call, so that
    threads share them; one that stands in several moments is opened and encoded once. Raises
    Malformed or Unencodable.
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
            # what the text of an error calls it
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
    """Depth has 16 bits, which no JPEG holds: it travels raw."""
    deep = {label: frame for label, frame in frames.items() if frame.dtype != np.uint8}
    flat = {label: frame for label, frame in frames.items() if label not in deep}
    encoded = dict(zip(flat, images.encode_all(flat, codec, quality), strict=True))
    return encoded | dict(zip(deep, images.encode_all(deep, Codec.RAW, quality), strict=True))
