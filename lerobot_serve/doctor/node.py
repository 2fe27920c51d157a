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

from lerobot_serve.doctor.control import ASKED, Controller, ENFORCE, Manager
from lerobot_serve.doctor.environment import Middleware
from lerobot_serve.doctor.topics import EDGE, End, Heard, Told
from lerobot_serve.edge import preparation
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.edge.robot.file import COMMAND_KEYS
from lerobot_serve.ros import inputs as ros_inputs
from lerobot_serve.ros import large_messages, qos
from lerobot_serve.ros.calls import call, CallFailed
from lerobot_serve.ros.runtime import Runtime
from lerobot_serve.ros.steady import SteadyNode
from lerobot_serve.wire.errors import Malformed

T = TypeVar('T')
MANAGER = 'controller_manager'
# as the manager's parameters call what it controls
CONTROLLER = re.compile(r'([^.]+)\.(type|params_file)')
# so many messages tell a rate
ENOUGH = 20
LOOK_S, SETTLE_S, CALL_S = 0.05, 0.5, 1.0
ASKED_LIMIT, SHOWN_LIMIT = 64, 8
FOR_EVER_NS = 10**18


class Doctor(SteadyNode):
    """See the module. Built in the main thread; what it may take begins with its making."""

    def __init__(self, runtime: Runtime, namespace: str, wait_s: float) -> None:
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

    def middleware(self) -> Middleware:
        """Return what runs below this node."""
        name = rclpy.get_rmw_implementation_identifier()
        return Middleware(name, large_messages.own_complaint(name))

    def listen(self, robot: Robot) -> list[Heard]:
        """Return what comes on the inputs, until each has sent enough or time is over."""
        inputs = preparation.inputs(robot)
        subscriptions = []
        for name, (topic, kind, _) in inputs.items():
            self._arrivals_ns[name] = []
            subscriptions.append(
                self.create_subscription(
                    ros_inputs.TYPES[kind],
                    self._full(topic),
                    partial(self._deposit, name),
                    qos.SENSOR,
                    raw=True,
                )
            )
        with self._came:
            self._came.wait_for(self._enough, max(0.0, self._deadline_s - time.monotonic()))
            listened_s = time.monotonic() - self._begin_s
        for subscription in subscriptions:
            self.destroy_subscription(subscription)
        openers = self._openers(robot)
        return [self._heard(name, *inputs[name], listened_s, openers[name]) for name in inputs]

    def commands(self, robot: Robot) -> Told:
        """Return who takes and who gives this robot's commands, as soon as somebody takes them."""
        command = robot.command
        topic = self._full(command.topic)
        takers = self._wait_for(partial(self.get_subscriptions_info_by_topic, topic))
        givers = self.get_publishers_info_by_topic(topic)
        return Told(
            topic,
            command.type,
            tuple(end(info, qos.command(1 / robot.fps), info.qos_profile) for info in takers),
            tuple(full_name(info) for info in givers),
            () if takers else self._taken_elsewhere(robot),
        )

    def _taken_elsewhere(self, robot: Robot) -> tuple[tuple[str, str], ...]:
        """Return topics and types of commands that some node in our namespace takes."""
        prefix = self.get_namespace().rstrip('/') + '/'
        inputs = {self._full(topic) for topic, _, _ in preparation.inputs(robot).values()}
        found = []
        for topic, kinds in self.get_topic_names_and_types():
            told = [kind.replace('/msg/', '/') for kind in kinds]
            commands = [kind for kind in told if kind in COMMAND_KEYS]
            mine = topic.startswith(prefix) and topic not in inputs
            if mine and commands and self.count_subscribers(topic):
                found.append((topic, commands[0]))
        return tuple(sorted(found)[:SHOWN_LIMIT])

    def managers(self, takers: Iterable[str]) -> list[Manager]:
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
        return all(len(times) >= ENOUGH for times in self._arrivals_ns.values())

    def _full(self, topic: str) -> str:
        """Return the name that a topic of the robot file has for an edge in our namespace."""
        return expand_topic_name(topic, EDGE, self.get_namespace())

    def _heard(
        self,
        name: str,
        topic: str,
        kind: str,
        max_age_s: float,
        listened_s: float,
        open_message: Callable[[bytes], object],
    ) -> Heard:
        full = self._full(topic)
        publishers = self.get_publishers_info_by_topic(full)
        return Heard(
            name,
            full,
            kind,
            max_age_s,
            tuple(end(info, info.qos_profile, qos.SENSOR) for info in publishers),
            tuple(self._arrivals_ns[name]),
            listened_s,
            trouble(open_message, self._newest.get(name)),
        )

    @staticmethod
    def _openers(robot: Robot) -> dict[str, Callable[[bytes], object]]:
        """Return for each input how an edge opens it."""
        names = preparation.state_inputs(robot)
        states = dict(zip(names, robot.state, strict=True))
        return {
            **{name: partial(ros_inputs.values, source=one) for name, one in states.items()},
            **{one.name: partial(ros_inputs.frame, camera=one) for one in robot.cameras},
        }

    def _wait_for(self, look: Callable[[], list[T]]) -> list[T]:
        """Return what there is, as soon as there is something or time is over."""
        while not (found := look()) and time.monotonic() < self._deadline_s:
            time.sleep(LOOK_S)
        return found

    def _nodes(self) -> set[str]:
        """Return the full names of all nodes."""
        pairs = self.get_node_names_and_namespaces()
        return {f'{namespace.rstrip("/")}/{name}' for name, namespace in pairs}

    def _settled(self) -> set[str]:
        """Return all nodes, when no new one has come for a while or time is over."""
        nodes, since_s = self._nodes(), time.monotonic()
        while since_s + SETTLE_S > time.monotonic() < self._deadline_s:
            time.sleep(LOOK_S)
            now = self._nodes()
            if now != nodes:
                nodes, since_s = now, time.monotonic()
        return nodes

    def _visible(self) -> list[str]:
        """Return the full names of the controller_managers in our namespace and below."""
        prefix = self.get_namespace().rstrip('/') + '/'
        names = [name for name in self._nodes() if name.endswith(f'/{MANAGER}')]
        return sorted(name for name in names if name.startswith(prefix))[:ASKED_LIMIT]

    def _manager(self, manager: str, takers: set[str], nodes: set[str]) -> Manager:
        """Return what a manager tells; of what it controls only `nodes` can be asked."""
        try:
            names = self._parameter_names(manager)
            enforces = self._values(manager, [name for name in names if name == ENFORCE])
        except CallFailed as error:
            return Manager(manager, trouble=str(error))
        place = manager.removesuffix(MANAGER)
        told = {place + match[1] for match in map(CONTROLLER.fullmatch, names) if match}
        asked = sorted((told | {name for name in takers if name.startswith(place)}) & nodes)
        controllers = (self._controller(name, name in takers) for name in asked[:ASKED_LIMIT])
        return Manager(manager, enforces.get(ENFORCE), tuple(controllers))

    def _controller(self, name: str, takes_commands: bool) -> Controller:
        try:
            wanted = [each for each in self._parameter_names(name) if each in ASKED]
            return Controller(name, self._values(name, wanted), takes_commands)
        except CallFailed as error:
            return Controller(name, {}, takes_commands, str(error))

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
            return call(client, request, CALL_S)
        finally:
            self.destroy_client(client)


def trouble(open_message: Callable[[bytes], object], raw: bytes | None) -> str:
    """Return why an edge could not use a message."""
    if raw is None:
        return ''
    try:
        open_message(raw)
    except Malformed as error:
        return str(error)
    return ''


def end(info: TopicEndpointInfo, writer: QoSProfile, reader: QoSProfile) -> End:
    """Return who is at one end of a topic, and what the profiles of both ends forbid."""
    compatible, reason = qos_check_compatible(told(writer), told(reader))
    mismatch = '; '.join(part.strip() for part in reason.replace('ERROR:', '').split(';') if part)
    return End(
        full_name(info),
        info.topic_type.replace('/msg/', '/'),
        mismatch if compatible == QoSCompatibility.ERROR else '',
    )


def told(profile: QoSProfile) -> QoSProfile:
    """
    Return what the two ends must agree on. The graph tells a time that is not limited as a very
    long one, which rclpy would take for a limit.
    """
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=profile.reliability,
        durability=profile.durability,
        deadline=limited(profile.deadline),
        liveliness=profile.liveliness,
        liveliness_lease_duration=limited(profile.liveliness_lease_duration),
    )


def limited(time_limit: Duration) -> Duration:
    return time_limit if time_limit.nanoseconds < FOR_EVER_NS else Duration()


def full_name(info: TopicEndpointInfo) -> str:
    return f'{info.node_namespace.rstrip("/")}/{info.node_name}'
