# SPDX-License-Identifier: Apache-2.0
"""Scale and encode the frames of an observation. Pure functions; the request thread."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace
import numpy as np

from lerobot_serve.arrays import FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.image_codec import ImageCodecPool
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.inputs.history import HistoryStep

# camera name and identity of its raw message: a message may be in several steps
FrameKey = tuple[str, int]
FrameMessages = dict[FrameKey, bytes]


def frame_key(step: HistoryStep, camera: str) -> FrameKey:
    return camera, id(step.snapshot.values[camera])


def camera_messages(steps: tuple[HistoryStep, ...], cameras: Iterable[str]) -> FrameMessages:
    """Return the messages of the cameras, the newest first, each once."""
    names = tuple(cameras)
    return {
        frame_key(step, name): step.snapshot.values[name]
        for step in reversed(steps)
        for name in reversed(names)
    }


def encode_frames(
    steps: tuple[HistoryStep, ...],
    cameras: dict[str, str],
    frames: Mapping[FrameKey, FrameArray | Image],
    images: ImageCodecPool,
    codec: Codec,
    quality: int,
) -> tuple[Image, ...]:
    """
    Return the frames of all history steps, ordered by step, then camera.

    `cameras` maps the robot's camera names to the policy's; `frames` holds the pixels of each
    message, or an image that is sent unchanged. All frames are encoded in parallel, each once.
    Raises Malformed or Unencodable.
    """
    # name of the frame in error texts; the newest step that has it
    labels = {
        frame_key(step, name): f'{cameras[name]}, {step.steps_back} steps back'
        for step in steps
        for name in cameras
    }
    pixels = {labels[key]: f for key, f in frames.items() if not isinstance(f, Image)}
    encoded = _encoded(pixels, images, codec, quality)
    ready = {key: f if isinstance(f, Image) else encoded[labels[key]] for key, f in frames.items()}
    return tuple(
        replace(ready[frame_key(step, name)], name=cameras[name], steps_back=step.steps_back)
        for step in steps
        for name in cameras
    )


def _encoded(
    frames: dict[str, FrameArray], images: ImageCodecPool, codec: Codec, quality: int
) -> dict[str, Image]:
    """Encode frames; 16-bit depth is sent raw, since JPEG cannot hold it."""
    deep = {label: frame for label, frame in frames.items() if frame.dtype != np.uint8}
    flat = {label: frame for label, frame in frames.items() if label not in deep}
    encoded = dict(zip(flat, images.encode_all(flat, codec, quality), strict=True))
    return encoded | dict(zip(deep, images.encode_all(deep, Codec.RAW, quality), strict=True))
