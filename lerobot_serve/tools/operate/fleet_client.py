# SPDX-License-Identifier: Apache-2.0
"""
Find routers and robots, read their states and call services, by a short-lived, hidden node or by
the node of a process that runs anyway.

The thread that builds it calls its methods; the executor thread deposits the states. Every wait
has a limit and ends with the message that it waits for; only the graph is polled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
import os
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import GetParameters, SetParametersAtomically
from rclpy.node import Node
from rclpy.parameter import Parameter, parameter_value_to_python
from rclpy.subscription import Subscription
from std_srvs.srv import Trigger

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.operate import silent_robots
from lerobot_serve.tools.operate.discovery.graph_search import GraphSearch, STATE
from lerobot_serve.tools.operate.discovery.known_nodes import KnownNodes
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView, ShadowView
from lerobot_serve.tools.operate.message_views import robot_view, router_view, shadow_view
from lerobot_serve.tools.operate.names import operator_name
from lerobot_serve.tools.operate.outcome import NotReached, ResultUnknown
from lerobot_serve_interfaces.msg import (
    CanaryState,
    EdgeState,
    EpisodeOutcome,
    RouterState,
    ShadowSummary,
)
from lerobot_serve_interfaces.srv import ControlSlot, GetStatus, ReportOutcome

T = TypeVar('T')
# of ControlSlot
REASON_LIMIT = 1024
ROUTER_KIND, ROBOT_KIND = RouterState.__name__, EdgeState.__name__
# a state that is older by its own clock is of a robot that hangs, or whose clock is off: a new one
# decides. An edge publishes five times per second
OLD_STATE_S, NEW_STATE_S = 2.0, 1.2
# for the states of the last robots, after each that arrives
LAST_STATES_S = 1.0
OUTCOMES = {
    'success': EpisodeOutcome.SUCCESS,
    'failure': EpisodeOutcome.FAILURE,
    'aborted': EpisodeOutcome.ABORTED,
}


class _Received(NamedTuple):
    """A state, when it arrived by the monotonic clock, and how many have arrived by then."""

    message: Any
    at_s: float
    arrivals: int = 1

    @property
    def age_s(self) -> float:
        """The age of the state: of a first, latched one by the clocks of both machines."""
        if self.arrivals > 1:
            return time.monotonic() - self.at_s
        stamp = self.message.stamp
        stamp_s: float = stamp.sec + stamp.nanosec / 1e9
        return time.time() - stamp_s


class FleetClient:
    """
    A context manager; `timeout_s` limits each discovery, each call and each confirmation, and
    `operator` is stored with each decision.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        node: Node | None = None,
        operator: str = '',
        known: KnownNodes | None = None,
    ) -> None:
        """
        Start a node, or use one that an executor spins and leave it as it was. `known` are the
        nodes that this machine has found before. Raises UserError when ROS does not start.
        """
        self._known = known
        self.timeout_s, self.operator = timeout_s, operator or operator_name()
        self._changed = threading.Condition()
        self._states: dict[str, _Received] = {}
        self._watched: dict[str, Subscription] = {}
        self._runtime = None if node else NodeRuntime([])
        self._node = node or _own_node(self._runtime)

    def __enter__(self) -> FleetClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._runtime:
            self._runtime.close()
            return
        for subscription in self._watched.values():
            self._node.destroy_subscription(subscription)
        self._watched.clear()

    # the graph

    def find_routers(self, wanted: str = '') -> list[str]:
        """Return the routers, at once when `wanted` is among them."""
        is_wanted = partial(_is_named, wanted) if wanted else None
        found = self._search(ROUTER_KIND, self._watch_router, is_wanted)
        if self._known and found and not wanted:
            self._known.replace(ROUTER_KIND, found)
        return found

    def find_robot_names(self) -> list[str]:
        """Return the names of the robots without waiting for their states."""
        return [RobotView(node).name for node in self._search(ROBOT_KIND, lambda _: None, None)]

    def find_robots(self, wanted: str = '', *, may_be_none: bool = False) -> list[RobotView]:
        """
        Return the robots, without waiting for others when `wanted`, the name of a robot, its edge
        or its client, is among them. One that publishes nothing, or was found before and is not
        now, is SILENT. `may_be_none`: do not wait for a first one.
        """
        is_wanted = partial(self._is_robot, wanted) if wanted else None
        nodes = self._search(
            ROBOT_KIND,
            self._watch_robot,
            is_wanted,
            may_be_none=may_be_none,
            lists_missing=True,
        )
        asked = [node for node in nodes if is_wanted and is_wanted(node)] or nodes
        self._wait_for_states(asked)
        self._wait_for_new_states(asked)
        robots = [self._robot_now(node) for node in nodes]
        return [*robots, *self._missing(nodes)]

    def forget_robots(self) -> None:
        """Forget the robots that were found before, so that none of them is missing."""
        if self._known:
            self._known.replace(ROBOT_KIND, ())

    def _search(
        self,
        kind: str,
        on_found: Callable[[str], None],
        is_wanted: Callable[[str], bool] | None,
        *,
        may_be_none: bool = False,
        lists_missing: bool = False,
    ) -> list[str]:
        known = self._known.seen(kind) if self._known else {}
        search = GraphSearch(self._node, kind, known)
        return search.run(
            self.timeout_s,
            on_found=on_found,
            is_wanted=is_wanted,
            may_be_none=may_be_none,
            lists_missing=lists_missing,
        )

    def _is_robot(self, wanted: str, node: str) -> bool:
        """Return whether a name means a robot, also by its client_id once its state is there."""
        found = self._states.get(node + STATE)
        return _is_named(wanted, node) or bool(found and found.message.client_id == wanted)

    def _wait_for_states(self, nodes: Sequence[str]) -> None:
        """Wait for a first state of each; for the last ones LAST_STATES_S after each arrival."""
        topics = [node + STATE for node in nodes]
        with self._changed:
            while missing := sum(topic not in self._states for topic in topics):
                limit_s = self.timeout_s if missing == len(topics) else LAST_STATES_S

                def has_more(before: int = missing) -> bool:
                    return sum(topic not in self._states for topic in topics) < before

                if not self._changed.wait_for(has_more, min(limit_s, self.timeout_s)):
                    return

    def _wait_for_new_states(self, nodes: Sequence[str]) -> None:
        """Wait for a new state of those whose last one is old."""
        with self._changed:
            old = {topic: self._states[topic].arrivals for topic in self._old_states(nodes)}
            limit_s = min(NEW_STATE_S, self.timeout_s)
            self._changed.wait_for(
                lambda: all(self._states[topic].arrivals > count for topic, count in old.items()),
                limit_s,
            )

    def _old_states(self, nodes: Sequence[str]) -> list[str]:
        """Return the topics of the nodes whose newest state is old. Under the lock."""
        topics = (node + STATE for node in nodes)
        return [topic for topic in topics if _is_old(self._states.get(topic))]

    def _robot_now(self, node: str) -> RobotView:
        with self._changed:
            found = self._states.get(node + STATE)
        if found is None:
            return silent_robots.mute_robot(node)
        robot = robot_view(node, found.message)
        return silent_robots.hung_robot(robot, found.age_s) if _is_old(found) else robot

    def _missing(self, nodes: Sequence[str]) -> list[RobotView]:
        """Return the robots that were found before and are not now; remember those of now."""
        if not self._known:
            return []
        seen, now_s = self._known.seen(ROBOT_KIND), time.time()
        self._known.add(ROBOT_KIND, nodes)
        return [
            silent_robots.missing_robot(node, now_s - at_s)
            for node, at_s in seen.items()
            if node not in nodes
        ]

    # latched states

    def router(self, name: str) -> RouterView:
        """Return the newest state of a router. Raises NotReached when none arrives."""
        self._watch_router(name)
        with self._changed:
            if not self._changed.wait_for(lambda: self._router_now(name), self.timeout_s):
                raise NotReached(
                    f'{name} is found and publishes no state within {self.timeout_s:g} s: it was '
                    'killed, hangs, or is not configured. Nothing was changed. Robots keep their '
                    'queue and reconnect; restart the router, its decisions are stored'
                )
            found = self._router_now(name)
        assert found
        return found

    def last_router(self, name: str) -> RouterView | None:
        """Return the newest state of a router without waiting; None before the first."""
        self._watch_router(name)
        with self._changed:
            return self._router_now(name)

    def wait_for_router(
        self, name: str, accepts: Callable[[RouterView], bool], timeout_s: float | None = None
    ) -> RouterView | None:
        """Return the first state that is accepted; None when none arrives in time."""
        self._watch_router(name)

        def accepted() -> RouterView | None:
            found = self._router_now(name)
            return found if found and accepts(found) else None

        with self._changed:
            limit_s = self.timeout_s if timeout_s is None else timeout_s
            return self._changed.wait_for(accepted, limit_s)

    def shadow(self, router: str, timeout_s: float | None = None) -> ShadowView | None:
        """Return the comparison of the shadow of a router; None when none arrives in time."""
        topic = f'{router}/shadow_summary'
        self._watch(ShadowSummary, topic)
        with self._changed:
            limit_s = self.timeout_s if timeout_s is None else timeout_s
            self._changed.wait_for(lambda: topic in self._states, limit_s)
            found = self._states.get(topic)
        return shadow_view(found.message) if found else None

    def wait_for_robot(self, node: str, accepts: Callable[[RobotView], bool]) -> RobotView | None:
        """Return the first state that is accepted; None when none arrives in time."""
        topic = node + STATE
        self._watch(EdgeState, topic)

        def accepted() -> RobotView | None:
            found = self._states.get(topic)
            view = robot_view(node, found.message) if found else None
            return view if view and accepts(view) else None

        with self._changed:
            return self._changed.wait_for(accepted, self.timeout_s)

    def _watch_robot(self, node: str) -> None:
        self._watch(EdgeState, node + STATE)

    def _watch_router(self, name: str) -> None:
        self._watch(RouterState, name + STATE)
        self._watch(CanaryState, f'{name}/canary')

    def _router_now(self, name: str) -> RouterView | None:
        """Return the state of a router, None before both topics have arrived. Under the lock."""
        state, canary = (self._states.get(f'{name}/{topic}') for topic in ('state', 'canary'))
        if not state or not canary:
            return None
        age_s = time.monotonic() - max(state.at_s, canary.at_s)
        return router_view(name, state.message, canary.message, age_s)

    def _watch(self, kind: type, topic: str) -> None:
        if topic in self._watched:
            return
        self._watched[topic] = self._node.create_subscription(
            kind, topic, partial(self._deposit, topic), qos.STATE
        )

    # executor thread

    def _deposit(self, topic: str, message: Any) -> None:
        with self._changed:
            before = self._states.get(topic)
            count = before.arrivals + 1 if before else 1
            self._states[topic] = _Received(message, time.monotonic(), count)
            self._changed.notify_all()

    # calls; each raises NotReached when nothing was sent, ResultUnknown without a reply

    def control_slot(
        self,
        router: str,
        command: str,
        *,
        slot: str = '',
        at_once: bool = False,
        reason: str,
        split_percent: int = 0,
        plan: Sequence[str] = (),
        find_s: float | None = None,
    ) -> tuple[bool, str]:
        """
        Run a command of ControlSlot, given by the name of its constant. `find_s`: the time limit
        of finding the service, where `router` may be none.
        """
        request = ControlSlot.Request(
            command=getattr(ControlSlot.Request, command),
            slot=slot,
            move_running_episodes=at_once,
            reason=reason[:REASON_LIMIT],
            split_percent=split_percent,
            plan=list(plan),
        )
        reply = self._call(ControlSlot, f'{router}/control_slot', request, find_s=find_s)
        return reply.success, reply.text

    def report_outcome(
        self, router: str, episode_id: str, outcome: str, text: str
    ) -> tuple[bool, str]:
        """Report the outcome of an episode, one of OUTCOMES."""
        message = EpisodeOutcome(
            stamp=self._node.get_clock().now().to_msg(),
            episode_id=episode_id,
            outcome=OUTCOMES[outcome],
            score=float('nan'),
            text=text,
        )
        request = ReportOutcome.Request(outcome=message)
        reply = self._call(ReportOutcome, f'{router}/report_outcome', request)
        return reply.accepted, reply.text

    def trigger(self, node: str, service: str) -> tuple[bool, str]:
        """Call a std_srvs/Trigger service of a node."""
        reply = self._call(Trigger, f'{node}/{service}', Trigger.Request())
        return reply.success, reply.message

    def get_parameters(self, node: str, names: Sequence[str]) -> dict[str, Any]:
        """Return the values of parameters."""
        request = GetParameters.Request(names=list(names))
        values = self._call(GetParameters, f'{node}/get_parameters', request).values
        found = (parameter_value_to_python(value) for value in values)
        return dict(zip(names, found, strict=False))

    def set_parameters(self, node: str, values: Mapping[str, object]) -> str:
        """Set parameters, all or none; return why they are rejected, empty when they are set."""
        request = SetParametersAtomically.Request(
            parameters=[_parameter(name, value) for name, value in values.items()]
        )
        reply = self._call(SetParametersAtomically, f'{node}/set_parameters_atomically', request)
        return '' if reply.result.successful else reply.result.reason

    def lifecycle_state(self, node: str) -> str:
        """Return the label of the lifecycle state, for example 'active'."""
        reply = self._call(GetState, f'{node}/get_state', GetState.Request())
        label: str = reply.current_state.label
        return label

    def change_state(self, node: str, transition: str, timeout_s: float) -> bool:
        """Run a lifecycle transition; return whether it succeeded."""
        request = ChangeState.Request()
        request.transition.label = transition
        reply = self._call(ChangeState, f'{node}/change_state', request, timeout_s)
        success: bool = reply.success
        return success

    def server_status(self, node: str) -> tuple[str, str]:
        """Return the fingerprint of the policy of a server, and its state in words."""
        status = self._call(GetStatus, f'{node}/get_status', GetStatus.Request()).status
        return status.policy, status.text

    def _call(
        self,
        kind: type,
        service: str,
        request: Any,
        timeout_s: float | None = None,
        *,
        find_s: float | None = None,
    ) -> Any:
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        client = self._node.create_client(kind, service)
        try:
            find_s = self.timeout_s if find_s is None else min(find_s, self.timeout_s)
            if not client.wait_for_service(timeout_sec=find_s):
                raise NotReached(f'{service} is not available; nothing was sent')
            return call_service(client, request, limit_s)
        except ServiceCallFailed as error:
            raise ResultUnknown(str(error)) from error
        finally:
            self._node.destroy_client(client)


def _own_node(runtime: NodeRuntime | None) -> Node:
    """Return a hidden node that the executor of a runtime spins."""
    assert runtime
    node = SteadyClockNode(
        f'_lerobot_serve_operator_{os.getpid()}',
        context=runtime.context,
        enable_rosout=False,
        start_parameter_services=False,
    )
    runtime.executor.add_node(node)
    runtime.start()
    return node


def _parameter(name: str, value: object) -> Any:
    """Return the message of a parameter; a list is one of texts."""
    kind = Parameter.Type.STRING_ARRAY if isinstance(value, list) else None
    return Parameter(name, kind, value).to_parameter_msg()


def _is_old(state: _Received | None) -> bool:
    """Return whether a state is old, or from the future of a clock that is off."""
    return state is not None and abs(state.age_s) > OLD_STATE_S


def _is_named(wanted: str, node: str) -> bool:
    """Return whether a name means a node: its full name, or that of its namespace."""
    name = wanted.strip('/')
    return name in (node.strip('/'), node.rpartition('/')[0].strip('/'))
