# SPDX-License-Identifier: Apache-2.0
"""
Decode states, frames and commands of a bag from their CDR bytes. Any thread. Each method raises
Malformed for a message that cannot be used.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot import command_messages
from lerobot_serve.edge.robot.description import CameraInput, RobotDescription, StateSource
from lerobot_serve.edge.ros import sensor_messages
from lerobot_serve.ros.subscriptions import decode_message
from lerobot_serve.tools.bags.message import pixels_of, RAW_TYPE, RawImage
from lerobot_serve.tools.dataset.features import to_millimetres

FLOAT_DEPTH = '32FC1'


class MessageValues:
    """Decodes messages; `depth_millimetres` rounds depth in metres."""

    def __init__(self, *, depth_millimetres: bool = False) -> None:
        self._depth_millimetres = depth_millimetres

    def state_values(self, raw: bytes, source: StateSource) -> Float64Array:
        """Return the values of one source in the order of its fields, in the robot's units."""
        return sensor_messages.source_values(raw, source)

    def frame_of(self, raw: bytes, topic: str, type_name: str) -> NDArray[Any]:
        """Return height x width x channels: RGB of 8 bits; depth of 16 bits or float32."""
        short = type_name.replace('/msg/', '/')
        try:
            if type_name == RAW_TYPE and (image := decode(RawImage, raw)).encoding == FLOAT_DEPTH:
                metres = pixels_of(image)
                return to_millimetres(metres) if self._depth_millimetres else metres
        except Malformed as error:
            raise Malformed(error.reason, f'{topic}: {error}') from None
        return sensor_messages.rgb_frame(raw, CameraInput(topic, topic, short, 0.0))

    def command_values(self, raw: bytes, robot: RobotDescription, topic: str) -> Float64Array:
        """Return the actions that a command message asks for, in the robot's units."""
        kind = robot.command.type
        message = decode_message(raw, command_messages.COMMAND_MESSAGES[kind].message_class, topic)
        return command_messages.command_values(message, kind, robot, topic)
