"""
A short-lived node: it listens to a robot's topics, looks who takes its commands, and asks
controller_managers for their parameters. Everything has a limit of time.

One thread calls its methods; the executor's thread, which must run meanwhile, deposits messages.
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
import rclpy
from rclpy.duration import Duration
from rclpy.expand_topic_name import expand_topic_name
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import HistoryPolicy, qos_check_compatible, QoSCompatibility, QoSProfile
from rclpy.topic_endpoint_info import TopicEndpointInfo

from lerobot_serve.edge import wiring
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.file import COMMAND_KEYS
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
from lerobot_serve.wire.errors import Malformed

T = TypeVar('T')
MANAGER = 'controller_manager'
# as the manager's parameters call what it controls
CONTROLLER = re.compile(r'([^.]+)\.(type|params_file)')
# so many messages tell a rate
MESSAGES_WANTED = 20
GRAPH_POLL_S, SETTLE_S, CALL_S = 0.05, 0.5, 1.0
QUERY_LIMIT, SHOWN_LIMIT = 64, 8
INFINITE_NS = 10**18


class DoctorNode(SteadyClockNode):
    """See the module. Built in the main thread; what it may take begins with its making."""

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
        self._came = threading.Condition()
        self._arrivals_ns: dict[str, list[int]] = {}
        self._newest: dict[str, bytes] = {}

    def middleware(self) -> MiddlewareFacts:
        """Return what runs below this node."""
        name = rclpy.get_rmw_implementation_identifier()
        return MiddlewareFacts(name, fastdds_profile.own_shared_memory_warning(name))

    def listen(self, robot: RobotDescription) -> list[InputTraffic]:
        """Return what comes on the inputs, until each has sent enough or time is over."""
        inputs = wiring.input_topics(robot)
        subscriptions = []
        for name, (topic, kind, _) in inputs.items():
            self._arrivals_ns[name] = []
            subscriptions.append(
                self.create_subscription(
                    ros_inputs.MESSAGE_TYPES[kind],
                    self._full(topic),
                    partial(self._deposit, name),
                    qos.SENSOR,
                    raw=True,
                )
            )
        with self._came:
            self._came.wait_for(self._enough, max(0.0, self._deadline_s - time.monotonic()))
            sampled_s = time.monotonic() - self._begin_s
        for subscription in subscriptions:
            self.destroy_subscription(subscription)
        openers = self._openers(robot)
        return [self._heard(name, *inputs[name], sampled_s, openers[name]) for name in inputs]

    def commands(self, robot: RobotDescription) -> CommandTopic:
        """Return who takes and who gives this robot's commands, as soon as somebody takes them."""
        command = robot.command
        topic = self._full(command.topic)
        takers = self._wait_for(partial(self.get_subscriptions_info_by_topic, topic))
        givers = self.get_publishers_info_by_topic(topic)
        return CommandTopic(
            topic,
            command.type,
            tuple(
                topic_endpoint(info, qos.command(1 / robot.fps), info.qos_profile)
                for info in takers
            ),
            tuple(node_full_name(info) for info in givers),
            () if takers else self._other_command_topics(robot),
        )

    def _other_command_topics(self, robot: RobotDescription) -> tuple[tuple[str, str], ...]:
        """Return topics and types of commands that some node in our namespace takes."""
        prefix = self.get_namespace().rstrip('/') + '/'
        inputs = {self._full(topic) for topic, _, _ in wiring.input_topics(robot).values()}
        found = []
        for topic, kinds in self.get_topic_names_and_types():
            told = [kind.replace('/msg/', '/') for kind in kinds]
            commands = [kind for kind in told if kind in COMMAND_KEYS]
            mine = topic.startswith(prefix) and topic not in inputs
            if mine and commands and self.count_subscribers(topic):
                found.append((topic, commands[0]))
        return tuple(sorted(found)[:SHOWN_LIMIT])

    def managers(self, takers: Iterable[str]) -> list[ControllerManagerFacts]:
        """Return what controller_managers tell; `takers` are nodes that take commands."""
        found = self._wait_for(self._visible)
        if found:
            nodes = self._settled()
            found = [self._manager(name, {*takers}, nodes) for name in self._visible()]
        return found

    # executor thread

    def _deposit(self, name: str, raw: bytes) -> None:
        with self._came:
            self._arrivals_ns[name].append(time.monotonic_ns())
            self._newest[name] = raw
            self._came.notify()

    # the caller's thread

    def _enough(self) -> bool:
        return all(len(times) >= MESSAGES_WANTED for times in self._arrivals_ns.values())

    def _full(self, topic: str) -> str:
        """Return the name that a topic of the robot file has for an edge in our namespace."""
        return expand_topic_name(topic, EDGE, self.get_namespace())

    def _heard(
        self,
        name: str,
        topic: str,
        kind: str,
        max_age_s: float,
        sampled_s: float,
        open_message: Callable[[bytes], object],
    ) -> InputTraffic:
        full = self._full(topic)
        publishers = self.get_publishers_info_by_topic(full)
        return InputTraffic(
            name,
            full,
            kind,
            max_age_s,
            tuple(topic_endpoint(info, info.qos_profile, qos.SENSOR) for info in publishers),
            tuple(self._arrivals_ns[name]),
            sampled_s,
            decode_error(open_message, self._newest.get(name)),
        )

    @staticmethod
    def _openers(robot: RobotDescription) -> dict[str, Callable[[bytes], object]]:
        """Return for each input how an edge opens it."""
        names = wiring.state_input_names(robot)
        states = dict(zip(names, robot.state, strict=True))
        return {
            **{
                name: partial(ros_inputs.source_values, source=one) for name, one in states.items()
            },
            **{one.name: partial(ros_inputs.rgb_frame, camera=one) for one in robot.cameras},
        }

    def _wait_for(self, look: Callable[[], list[T]]) -> list[T]:
        """Return what there is, as soon as there is something or time is over."""
        while not (found := look()) and time.monotonic() < self._deadline_s:
            time.sleep(GRAPH_POLL_S)
        return found

    def _nodes(self) -> set[str]:
        """Return the full names of all nodes."""
        pairs = self.get_node_names_and_namespaces()
        return {f'{namespace.rstrip("/")}/{name}' for name, namespace in pairs}

    def _settled(self) -> set[str]:
        """Return all nodes, when no new one has come for a while or time is over."""
        nodes, since_s = self._nodes(), time.monotonic()
        while since_s + SETTLE_S > time.monotonic() < self._deadline_s:
            time.sleep(GRAPH_POLL_S)
            now = self._nodes()
            if now != nodes:
                nodes, since_s = now, time.monotonic()
        return nodes

    def _visible(self) -> list[str]:
        """Return the full names of the controller_managers in our namespace and below."""
        prefix = self.get_namespace().rstrip('/') + '/'
        names = [name for name in self._nodes() if name.endswith(f'/{MANAGER}')]
        return sorted(name for name in names if name.startswith(prefix))[:QUERY_LIMIT]

    def _manager(self, manager: str, takers: set[str], nodes: set[str]) -> ControllerManagerFacts:
        """Return what a manager tells; of what it controls only `nodes` can be asked."""
        try:
            names = self._parameter_names(manager)
            enforces = self._values(manager, [name for name in names if name == ENFORCE])
        except ServiceCallFailed as error:
            return ControllerManagerFacts(manager, trouble=str(error))
        place = manager.removesuffix(MANAGER)
        told = {place + match[1] for match in map(CONTROLLER.fullmatch, names) if match}
        asked = sorted((told | {name for name in takers if name.startswith(place)}) & nodes)
        controllers = (self._controller(name, name in takers) for name in asked[:QUERY_LIMIT])
        return ControllerManagerFacts(manager, enforces.get(ENFORCE), tuple(controllers))

    def _controller(self, name: str, subscribes_commands: bool) -> ControllerFacts:
        try:
            wanted = [each for each in self._parameter_names(name) if each in QUERIED_PARAMETERS]
            return ControllerFacts(name, self._values(name, wanted), subscribes_commands)
        except ServiceCallFailed as error:
            return ControllerFacts(name, {}, subscribes_commands, str(error))

    def _parameter_names(self, node: str) -> Sequence[str]:
        """Raises CallFailed."""
        answer = self._ask(ListParameters, f'{node}/list_parameters', ListParameters.Request())
        return answer.result.names

    def _values(self, node: str, names: list[str]) -> dict[str, Any]:
        """Return parameters that the node has. Raises CallFailed."""
        if not names:
            return {}
        request = GetParameters.Request(names=names)
        values: list[ParameterValue] = self._ask(
            GetParameters, f'{node}/get_parameters', request
        ).values
        return dict(zip(names, map(parameter_value_to_python, values), strict=False))

    def _ask(self, kind: type, service: str, request: Any) -> Any:
        """Raises CallFailed."""
        client = self.create_client(kind, service)
        try:
            return call_service(client, request, CALL_S)
        finally:
            self.destroy_client(client)


def decode_error(open_message: Callable[[bytes], object], raw: bytes | None) -> str:
    """Return why an edge could not use a message."""
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
    """Return who is at one end of a topic, and what the profiles of both ends forbid."""
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
    Return what the two ends must agree on. The graph tells a time that is not limited as a very
    long one, which rclpy would take for a limit.
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
