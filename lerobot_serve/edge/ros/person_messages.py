# SPDX-License-Identifier: Apache-2.0
"""
What a person sends: the command of a leader arm or a joystick, and the deadman's button.

The thread `inputs` deposits messages, the tick thread decodes them: pure functions that raise
Malformed for unusable messages; the module is a PersonMessages. The executor thread watches how
many publishers there are.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Joy

from lerobot_serve.arrays import Float64Array
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge import clock
from lerobot_serve.edge.robot.command_messages import (
    check_finite,
    COMMAND_MESSAGES,
    command_values,
)
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file_format import InterventionInput, JOY
from lerobot_serve.edge.takeover import (
    COMMAND,
    DEADMAN,
    DeviceState,
    PersonInput,
    PersonTarget,
)
from lerobot_serve.ros import qos
from lerobot_serve.ros.subscriptions import decode_message, DedicatedSubscriptions

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


class PersonSubscriptions:
    """Subscribes with `inputs`, before its thread runs."""

    def __init__(self, node: Node, inputs: DedicatedSubscriptions, device: PersonInput) -> None:
        self._node, self._device = node, device
        described, deadman = device.description, device.description.deadman_topic
        roles = {described.topic: (PERSON_MESSAGE_TYPES[described.type], [COMMAND])}
        if deadman:
            # the buttons of a joystick may be on the topic of its axes
            roles.setdefault(deadman, (Joy, []))[1].append(DEADMAN)
        for topic, (kind, names) in roles.items():
            inputs.add_with_id(topic, qos.SENSOR, partial(self._deposit, names), kind)
        self._topics = [node.resolve_topic_name(topic) for topic in roles]

    # inputs thread

    def _deposit(self, names: list[str], raw: bytes, message_id: int) -> None:
        self._device.deposit(names, raw, clock.now_ns(), message_id)

    # executor thread

    def poll(self, *, has_conflict: bool) -> None:
        """
        Block the device while two would pull the robot to and fro: two publishers, or two edge
        controllers (`has_conflict`).
        """
        self._device.blocked_by = DeviceState.CONFLICT if has_conflict else self._two_sources()

    def _two_sources(self) -> DeviceState | None:
        has_two = any(self._node.count_publishers(topic) > 1 for topic in self._topics)
        return DeviceState.TWO_SOURCES if has_two else None
