# SPDX-License-Identifier: Apache-2.0
"""
The output to the robot: commands, their records and the stop service; and the guard against a
second edge controller on the command topic, which the ROS graph shows with its ticks.

The tick thread sends, the executor thread checks for other edges.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time

from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.subscription import Subscription

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
from lerobot_serve.edge.ros.stop_service import StopService
from lerobot_serve.errors import UserError
from lerobot_serve.ros import qos
from lerobot_serve_interfaces.msg import EdgeState, ExecutedAction

Gid = tuple[int, ...]

# discovery time of nodes on one machine
DISCOVERY_S = 0.5
POLL_S = 0.02
# topic that every edge controller publishes beside its commands
EDGE_TOPIC, STATE = 'executed_action', 'state'


class CommandTopicPublishers:
    """Publishers of one topic. `own` is the gid of this node's publisher, () without one."""

    def __init__(self, node: Node, topic: str) -> None:
        """Find the publishers of `topic`, its full name."""
        self._node, self.topic = node, topic
        self.own: Gid = ()
        self._ages: dict[str, int] = {}
        self._states: dict[str, Subscription] = {}

    def create(self, create: Callable[[], Publisher]) -> Publisher:
        """Create this node's publisher of the topic with `create`, and record its gid."""
        # another process may have the same name
        before = {gid for _, gid in self._found()}
        publisher = create()
        name = self._node.get_fully_qualified_name()
        own = [gid for node, gid in self._found() if node == name and gid not in before]
        self.own = own[0] if own else ()
        return publisher

    def edges(self) -> list[OtherPublisher]:
        """Return the other edge controllers found so far. Executor thread."""
        others = [(node, gid) for node, gid in self._found() if gid != self.own]
        edges = [each for each in others if self._node.count_publishers(f'{each[0]}/{EDGE_TOPIC}')]
        self._listen_to({node for node, _ in edges})
        return [OtherPublisher(node, gid, self._ages.get(node)) for node, gid in edges]

    def _listen_to(self, names: set[str]) -> None:
        """Subscribe to the states of exactly these edges."""
        for name in self._states.keys() - names:
            self._node.destroy_subscription(self._states.pop(name))
            self._ages.pop(name, None)
        for name in names - self._states.keys() - {self._node.get_fully_qualified_name()}:
            self._states[name] = self._node.create_subscription(
                EdgeState, f'{name}/{STATE}', partial(self._on_state, name), qos.STATE
            )

    def _on_state(self, name: str, message: EdgeState) -> None:
        # missed control steps of a stopped process count towards its age
        self._ages[name] = message.control_steps + message.control_steps_missed

    def wait_for_other_edges(self) -> list[OtherPublisher]:
        """Return `edges`, after the discovery time."""
        deadline = time.monotonic() + DISCOVERY_S
        while not (edges := self.edges()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return edges

    def _found(self) -> list[tuple[str, Gid]]:
        return [
            (f'{info.node_namespace.rstrip("/")}/{info.node_name}', tuple(info.endpoint_gid))
            for info in self._node.get_publishers_info_by_topic(self.topic)
        ]


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
        edges = self._publishers.wait_for_other_edges()
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
            # asked last: a process that is stopped once this is answered sends when it continues
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
        edges = self._publishers.edges()
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
