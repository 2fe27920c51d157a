# SPDX-License-Identifier: Apache-2.0
"""Depth in metres as whole millimetres, which LeRobot stores without loss. Pure; any thread."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lerobot_serve.arrays import Float64Array
from lerobot_serve.edge.robot.description import RobotDescription, StateSource
from lerobot_serve.tools.dataset.feeding import MessageValues

RULE = 'metres of float32 as the nearest millimetre; 0: no measurement, or above 65.535 m'
MILLIMETRES, HIGHEST = 1000.0, 65535


def to_millimetres(metres: NDArray[np.float32]) -> NDArray[np.uint16]:
    """
    Return depth in millimetres. As in the encoding 16UC1 of ROS, 0 is no measurement: in float32
    that is NaN; what is infinite, negative or too far for 16 bits is none either.
    """
    rounded = np.rint(metres.astype(np.float64) * MILLIMETRES)
    is_measured = (rounded >= 0) & (rounded <= HIGHEST)
    return np.where(is_measured, rounded, 0).astype(np.uint16)


class MillimetreDepth:
    """Decodes messages as `values` does, but depth in metres as millimetres."""

    def __init__(self, values: MessageValues) -> None:
        self._values = values

    def state_values(self, raw: bytes, source: StateSource) -> Float64Array:
        """Return the values of one state source. Raises Malformed."""
        return self._values.state_values(raw, source)

    def frame_of(self, raw: bytes, topic: str, type_name: str) -> NDArray[Any]:
        """Return height x width x channels. Raises Malformed."""
        frame = self._values.frame_of(raw, topic, type_name)
        return to_millimetres(frame) if frame.dtype == np.float32 else frame

    def command_values(self, raw: bytes, robot: RobotDescription, topic: str) -> Float64Array:
        """Return the actions of a command. Raises Malformed."""
        return self._values.command_values(raw, robot, topic)
