# SPDX-License-Identifier: Apache-2.0
"""
A short-lived node that samples a robot's inputs, finds the subscribers of its commands and reads
the parameters of controller_managers. Every wait has a time limit.

One thread calls its methods; the executor thread, which must be spinning, deposits messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
import re
import threading
import time
from typing import Any, TypeVar

from rcl_interfaces.msg import ParameterValue
from rcl_interfaces.srv import GetParameters, ListParameters
from rclpy.duration import Duration
from rclpy.expand_topic_name import expand_topic_name
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import HistoryPolicy, qos_check_compatible, QoSCompatibility, QoSProfile
from rclpy.topic_endpoint_info import TopicEndpointInfo
from rclpy.utilities import get_rmw_implementation_identifier

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.robot.command_types import COMMAND_TYPES
from lerobot_serve.edge.robot.description import input_topics, RobotDescription, state_input_names
from lerobot_serve.edge.ros import sensor_messages as ros_inputs
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process import fastdds_profile
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.doctor.environment import MiddlewareFacts
from lerobot_serve.tools.doctor.ros2_control import (
    ControllerFacts,
    ControllerManagerFacts,
    ENFORCE,
    QUERIED_PARAMETERS,
)
from lerobot_serve.tools.doctor.topics import CommandTopic, EDGE, InputTraffic, TopicEndpoint

T = TypeVar('T')
MANAGER = 'controller_manager'
# parameters of the manager that name its controllers
CONTROLLER = re.compile(r'([^.]+)\.(type|params_file)')
# number of messages that suffices to compute a rate
MESSAGES_WANTED = 20
# a call lasts long enough to be repeated once
GRAPH_POLL_S, SETTLE_S, CALL_S = 0.05, 0.5, 2.0
QUERY_LIMIT, SHOWN_LIMIT = 64, 8
INFINITE_NS = 10**18


class DoctorNode(SteadyClockNode):
    """See the module. Built in the main thread; `wait_s` counts from its creation."""

    def __init__(self, runtime: NodeRuntime, namespace: str, wait_s: float) -> None:
        super().__init__(
            'lerobot_serve_doctor',
            namespace=namespace,
            context=runtime.context,
            enable_rosout=False,
            start_parameter_services=False,
        )
        self._begin_s = time.monotonic()
        self._deadline_s = self._begin_s + wait_s
        self._message_arrived = threading.Condition()
        self._arrivals_ns: dict[str, list[int]] = {}
        self._newest: dict[str, bytes] = {}

    def middleware(self) -> MiddlewareFacts:
        """Return the middleware of this process."""
        name = get_rmw_implementation_identifier()
        return MiddlewareFacts(name, fastdds_profile.own_shared_memory_warning(name))

    def sample_inputs(self, robot: RobotDescription) -> list[InputTraffic]:
        """
        Sample the inputs until each has received enough messages or the time limit is reached.
        """
        inputs = input_topics(robot)
        subscriptions = []
        for name, (topic, kind, _) in inputs.items():
            self._arrivals_ns[name] = []
            subscriptions.append(
                self.create_subscription(
                    ros_inputs.MESSAGE_TYPES[kind],
                    self._expanded_topic(topic),
                    partial(self._deposit, name),
                    qos.SENSOR,
                    raw=True,
                )
            )
        with self._message_arrived:
            self._message_arrived.wait_for(
                self._has_enough_messages, max(0.0, self._deadline_s - time.monotonic())
            )
            sampled_s = time.monotonic() - self._begin_s
        for subscription in subscriptions:
            self.destroy_subscription(subscription)
        decoders = self._decoders(robot)
        return [
            self._input_traffic(name, *inputs[name], sampled_s, decoders[name]) for name in inputs
        ]

    def command_topic(self, robot: RobotDescription) -> CommandTopic:
        """
        Return the endpoints of the command topic; wait for a subscriber within the time limit.
        """
        command = robot.command
        topic = self._expanded_topic(command.topic)
        subscribers = self._wait_for(partial(self.get_subscriptions_info_by_topic, topic))
        publishers = self.get_publishers_info_by_topic(topic)
        return CommandTopic(
            topic,
            command.type,
            tuple(
                topic_endpoint(info, qos.command(1 / robot.fps), info.qos_profile)
                for info in subscribers
            ),
            tuple(node_full_name(info) for info in publishers),
            () if subscribers else self._other_command_topics(robot),
        )

    def _other_command_topics(self, robot: RobotDescription) -> tuple[tuple[str, str], ...]:
        """Return command topics in this namespace that have a subscriber, with their types."""
        prefix = self.get_namespace().rstrip('/') + '/'
        inputs = {self._expanded_topic(topic) for topic, _, _ in input_topics(robot).values()}
        found = []
        for topic, kinds in self.get_topic_names_and_types():
            types = [kind.replace('/msg/', '/') for kind in kinds]
            commands = [kind for kind in types if kind in COMMAND_TYPES]
            is_in_namespace = topic.startswith(prefix) and topic not in inputs
            if is_in_namespace and commands and self.count_subscribers(topic):
                found.append((topic, commands[0]))
        return tuple(sorted(found)[:SHOWN_LIMIT])

    def controller_managers(self, subscribers: Iterable[str]) -> list[ControllerManagerFacts]:
        """Read the controller_managers; `subscribers` are nodes that subscribe to commands."""
        if not self._wait_for(self._visible_managers):
            return []
        nodes = self._settled_nodes()
        return [self._manager(name, {*subscribers}, nodes) for name in self._visible_managers()]

    # executor thread

    def _deposit(self, name: str, raw: bytes) -> None:
        with self._message_arrived:
            self._arrivals_ns[name].append(time.monotonic_ns())
            self._newest[name] = raw
            self._message_arrived.notify()

    # the caller's thread

    def _has_enough_messages(self) -> bool:
        return all(len(times) >= MESSAGES_WANTED for times in self._arrivals_ns.values())

    def _expanded_topic(self, topic: str) -> str:
        """Return the full name of a topic of the robot file for an edge in this namespace."""
        return expand_topic_name(topic, EDGE, self.get_namespace())

    def _input_traffic(
        self,
        name: str,
        topic: str,
        kind: str,
        max_age_s: float,
        sampled_s: float,
        open_message: Callable[[bytes], object],
    ) -> InputTraffic:
        full = self._expanded_topic(topic)
        publishers = self.get_publishers_info_by_topic(full)
        return InputTraffic(
            name=name,
            topic=full,
            type=kind,
            max_age_s=max_age_s,
            publishers=tuple(
                topic_endpoint(info, info.qos_profile, qos.SENSOR) for info in publishers
            ),
            arrivals_ns=tuple(self._arrivals_ns[name]),
            sampled_s=sampled_s,
            decode_error=decode_error(open_message, self._newest.get(name)),
        )

    @staticmethod
    def _decoders(robot: RobotDescription) -> dict[str, Callable[[bytes], object]]:
        """Return the decoder of an edge for each input."""
        names = state_input_names(robot)
        states = dict(zip(names, robot.state, strict=True))
        return {
            **{
                name: partial(ros_inputs.source_values, source=one) for name, one in states.items()
            },
            **{one.name: partial(ros_inputs.rgb_frame, camera=one) for one in robot.cameras},
        }

    def _wait_for(self, poll: Callable[[], list[T]]) -> list[T]:
        """Poll until there is a result or the time limit is reached."""
        while not (found := poll()) and time.monotonic() < self._deadline_s:
            time.sleep(GRAPH_POLL_S)
        return found

    def _nodes(self) -> set[str]:
        """Return the full names of all nodes."""
        pairs = self.get_node_names_and_namespaces()
        return {f'{namespace.rstrip("/")}/{name}' for name, namespace in pairs}

    def _settled_nodes(self) -> set[str]:
        """Return all nodes once their set is stable for SETTLE_S or the time limit is reached."""
        nodes, since_s = self._nodes(), time.monotonic()
        while since_s + SETTLE_S > time.monotonic() < self._deadline_s:
            time.sleep(GRAPH_POLL_S)
            now = self._nodes()
            if now != nodes:
                nodes, since_s = now, time.monotonic()
        return nodes

    def _visible_managers(self) -> list[str]:
        """Return the full names of the controller_managers in this namespace and below."""
        prefix = self.get_namespace().rstrip('/') + '/'
        names = [name for name in self._nodes() if name.endswith(f'/{MANAGER}')]
        return sorted(name for name in names if name.startswith(prefix))[:QUERY_LIMIT]

    def _manager(
        self, manager: str, subscribers: set[str], nodes: set[str]
    ) -> ControllerManagerFacts:
        """Read a manager and those of its controllers that are among `nodes`."""
        try:
            names = self._parameter_names(manager)
            enforces = self._values(manager, [name for name in names if name == ENFORCE])
        except ServiceCallFailed as error:
            return ControllerManagerFacts(manager, error=str(error))
        place = manager.removesuffix(MANAGER)
        named = {place + match[1] for match in map(CONTROLLER.fullmatch, names) if match}
        queried = sorted(
            (named | {name for name in subscribers if name.startswith(place)}) & nodes
        )
        controllers = (
            self._controller(name, name in subscribers) for name in queried[:QUERY_LIMIT]
        )
        return ControllerManagerFacts(manager, enforces.get(ENFORCE), tuple(controllers))

    def _controller(self, name: str, subscribes_commands: bool) -> ControllerFacts:
        try:
            wanted = [each for each in self._parameter_names(name) if each in QUERIED_PARAMETERS]
            return ControllerFacts(name, self._values(name, wanted), subscribes_commands)
        except ServiceCallFailed as error:
            return ControllerFacts(name, {}, subscribes_commands, str(error))

    def _parameter_names(self, node: str) -> Sequence[str]:
        """Return the names of the parameters. Raises ServiceCallFailed."""
        reply = self._call(ListParameters, f'{node}/list_parameters', ListParameters.Request())
        names: Sequence[str] = reply.result.names
        return names

    def _values(self, node: str, names: list[str]) -> dict[str, Any]:
        """Return parameters that the node has. Raises ServiceCallFailed."""
        if not names:
            return {}
        request = GetParameters.Request(names=names)
        values: list[ParameterValue] = self._call(
            GetParameters, f'{node}/get_parameters', request
        ).values
        return dict(zip(names, map(parameter_value_to_python, values), strict=False))

    def _call(self, kind: type, service: str, request: Any) -> Any:
        """Read something within the time limit. Raises ServiceCallFailed."""
        client = self.create_client(kind, service)
        try:
            return call_service(client, request, CALL_S, idempotent=True)
        finally:
            self.destroy_client(client)


def decode_error(open_message: Callable[[bytes], object], raw: bytes | None) -> str:
    """Return why an edge cannot decode a message, empty when it can."""
    if raw is None:
        return ''
    try:
        open_message(raw)
    except Malformed as error:
        return str(error)
    return ''


def topic_endpoint(
    info: TopicEndpointInfo, writer: QoSProfile, reader: QoSProfile
) -> TopicEndpoint:
    """Return one endpoint of a topic, with the incompatibilities of the two QoS profiles."""
    compatible, reason = qos_check_compatible(
        comparable_profile(writer), comparable_profile(reader)
    )
    mismatch = '; '.join(part.strip() for part in reason.replace('ERROR:', '').split(';') if part)
    return TopicEndpoint(
        node_full_name(info),
        info.topic_type.replace('/msg/', '/'),
        mismatch if compatible == QoSCompatibility.ERROR else '',
    )


def comparable_profile(profile: QoSProfile) -> QoSProfile:
    """
    Return the QoS policies that must be compatible. The graph reports an unlimited duration as a
    very long one, which rclpy would treat as a limit.
    """
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=profile.reliability,
        durability=profile.durability,
        deadline=finite_duration(profile.deadline),
        liveliness=profile.liveliness,
        liveliness_lease_duration=finite_duration(profile.liveliness_lease_duration),
    )


def finite_duration(time_limit: Duration) -> Duration:
    return time_limit if time_limit.nanoseconds < INFINITE_NS else Duration()


def node_full_name(info: TopicEndpointInfo) -> str:
    return f'{info.node_namespace.rstrip("/")}/{info.node_name}'
