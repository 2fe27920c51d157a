# SPDX-License-Identifier: Apache-2.0
"""
Decode what a person sends: the command of a leader arm or a joystick, and the deadman's button.

Pure functions; the tick thread. They raise Malformed for unusable messages. The module is a
PersonMessages.
"""

from __future__ import annotations

import numpy as np
from sensor_msgs.msg import Joy

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.command_messages import (
    check_finite,
    COMMAND_MESSAGES,
    command_values,
)
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file_format import InterventionInput, JOY
from lerobot_serve.edge.takeover.person_input import PersonTarget
from lerobot_serve.ros.topics.checked_subscription import decode_message

# type name in a robot file -> message class
PERSON_MESSAGE_TYPES: dict[str, type] = {
    **{kind: each.message_class for kind, each in COMMAND_MESSAGES.items()},
    JOY: Joy,
}


def person_target(raw: bytes, robot: RobotDescription) -> PersonTarget:
    """Return the target, one value for each action."""
    device = robot.intervention
    if device is None:
        raise ValueError('the robot has no intervention')
    message = decode_message(raw, PERSON_MESSAGE_TYPES[device.type], device.topic)
    if device.type == JOY:
        return PersonTarget(_rates(message, robot, device), is_rate=True)
    return PersonTarget(command_values(message, device.type, robot, device.topic))


def is_button_pressed(raw: bytes, topic: str, button: int) -> bool:
    """Return whether a button of a sensor_msgs/Joy is pressed."""
    message = decode_message(raw, Joy, topic)
    if button >= len(message.buttons):
        raise Malformed(
            'wrong_shape', f'{topic}: no button {button}; there are {len(message.buttons)}'
        )
    return bool(message.buttons[button])


def _rates(message: Joy, robot: RobotDescription, device: InterventionInput) -> Float64Array:
    """Return the rates of all actions; those without an axis stay."""
    rates = dict.fromkeys((action.name for action in robot.actions), 0.0)
    for name, each in device.axes.items():
        if each.axis >= len(message.axes):
            raise Malformed(
                'wrong_shape',
                f'{device.topic}: no axis {each.axis}; there are {len(message.axes)}',
            )
        rates[name] = each.scale * message.axes[each.axis]
    values = np.array(list(rates.values()), np.float64)
    check_finite(values, robot, device.topic)
    return values
