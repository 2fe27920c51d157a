# SPDX-License-Identifier: Apache-2.0
"""
The topics of the device with which a person takes over: its commands and its deadman.

The thread `inputs` deposits messages; the executor thread watches how many publishers there are.
"""

from __future__ import annotations

from functools import partial

from rclpy.node import Node
from sensor_msgs.msg import Joy

from lerobot_serve.edge import clock
from lerobot_serve.edge.ros.person_messages import PERSON_MESSAGE_TYPES
from lerobot_serve.edge.takeover.person_input import COMMAND, DEADMAN, DeviceState, PersonInput
from lerobot_serve.ros import qos
from lerobot_serve.ros.topics.dedicated_subscription import DedicatedSubscriptions


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
