# SPDX-License-Identifier: Apache-2.0
"""Interface of the decoder of input messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from lerobot_serve.arrays import Float64Array, FrameArray
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.edge.robot.description import CameraInput, StateSource


class MessageReader(Protocol):
    """
    Decodes raw input messages; implemented by edge.ros.sensor_messages. Each raises Malformed. Any
    thread.
    """

    def state_vector(self, raws: Sequence[bytes], sources: Sequence[StateSource]) -> Float64Array:
        """Return the concatenated values of all sources, from one message of each."""

    def rgb_frame(self, raw: bytes, camera: CameraInput) -> FrameArray:
        """Return height x width x channels, RGB."""

    def camera_jpeg(self, raw: bytes, camera: CameraInput) -> Image | None:
        """Return a camera's own JPEG, None if the frame must be encoded."""
