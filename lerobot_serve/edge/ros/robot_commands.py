# SPDX-License-Identifier: Apache-2.0
"""
The output to the robot: commands, their records and the stop service; and the guard against a
second edge controller on the command topic.

The tick thread sends, the executor thread checks for other edges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time

from rclpy.node import Node

from lerobot_serve.arrays import Float64Array
from lerobot_serve.edge.control import command_conflict
from lerobot_serve.edge.control.command_conflict import (
    CommandConflict,
    ConflictAction,
    OtherPublisher,
    OwnAge,
)
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.observability import reports
from lerobot_serve.edge.robot.command_messages import command_message, COMMAND_MESSAGES
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.ros.command_publishers import CommandTopicPublishers
from lerobot_serve.edge.ros.stop_service import StopService
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import ExecutedAction


class RobotCommands:
    """
    Publishes the commands of one robot, one every `step_s`, with the episode that runs. Gids
    decide between two edges whose ages differ by less than `tie_s`. Raises UserError if another
    edge already commands the robot.
    """

    def __init__(
        self,
        node: Node,
        robot: RobotDescription,
        *,
        client_id: str,
        episode_id: Callable[[], str],
        step_s: float,
        tie_s: float,
        stop_service: str,
    ) -> None:
        self._robot, self._step_s, self._client_id = robot, step_s, client_id
        self._episode_id = episode_id
        self._node = node
        topic = node.resolve_topic_name(robot.command.topic)
        self._publishers = CommandTopicPublishers(node, topic)
        # checked before this node has a publisher, so that a running edge does not react
        edges = [OtherPublisher(*each) for each in self._publishers.wait_for_other_edges()]
        if refusal := command_conflict.start_refusal(topic, edges):
            raise UserError(refusal)
        self._commands = self._publishers.create(
            partial(
                node.create_publisher,
                COMMAND_MESSAGES[robot.command.type].message_class,
                topic,
                qos.command(step_s),
                qos_overriding_options=qos.OVERRIDABLE,
            )
        )
        self._executed = node.create_publisher(
            ExecutedAction,
            '~/executed_action',
            qos.EXECUTED_ACTION,
            qos_overriding_options=qos.OVERRIDABLE,
        )
        # held while publishing: after `_withdraw` no command is sent
        self._sending = threading.Lock()
        self._has_commanded = False
        self._conflict = CommandConflict(
            topic, self._publishers.own, tie_steps=round(tie_s / step_s)
        )
        self._stop_service = StopService(node, stop_service)

    # tick thread

    def send_step(
        self, executed: ExecutedStep, control_step: int, is_old: Callable[[], bool]
    ) -> bool:
        """
        Send the command of a step, if it has one, and publish the record of it; return False and
        do neither if another edge commands the robot, or the command `is_old` at the last moment.
        """
        command = executed.judgement.command
        if self._conflict.is_silent:
            return False
        if command is not None and not self.send_command(command, is_old):
            return False
        record = reports.executed_action(
            executed,
            stamp=self._node.get_clock().now().to_msg(),
            control_step=control_step,
            client_id=self._client_id,
            episode_id=self._episode_id(),
        )
        self._executed.publish(record)
        return True

    def send_command(
        self, command: Float64Array, is_old: Callable[[], bool] = lambda: False
    ) -> bool:
        """Send a command without a record; return whether it was sent."""
        stamp = self._node.get_clock().now().to_msg()
        message = command_message(command, self._robot, stamp, self._step_s)
        with self._sending:
            # asked last: a process that is stopped once this is answered sends when it goes on
            if self._conflict.is_silent or is_old():
                return False
            self._has_commanded = True
            self._commands.publish(message)
            return True

    def call_stop_service(self, reason: str) -> None:
        """Call the stop service without waiting."""
        self._stop_service.call(reason)

    # executor thread

    @property
    def alarm(self) -> str:
        """The alarm about another edge that commands the robot; empty without one."""
        return self._conflict.text

    def poll_stop_service(self) -> None:
        """Log calls of the stop service and their results."""
        self._stop_service.poll()

    def check_conflict(self, age_steps: int) -> bool:
        """
        Check for other edges; return whether this edge, `age_steps` control steps old, must pause.
        Raises UserError after it has yielded to an older one.
        """
        edges = [OtherPublisher(*each) for each in self._publishers.edges()]
        own = OwnAge(age_steps, self._has_commanded)
        action = self._conflict.update(edges, own, time.monotonic_ns())
        if action is ConflictAction.EXIT:
            self._withdraw()
            raise UserError(command_conflict.start_refusal(self._publishers.topic, edges))
        return action is ConflictAction.PAUSE

    def _withdraw(self) -> None:
        """Stop publishing immediately: the other edge commands the robot."""
        with self._sending:
            self._conflict.is_silent = True
        self._node.destroy_publisher(self._commands)
