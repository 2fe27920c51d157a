# SPDX-License-Identifier: Apache-2.0
"""
The ROS client of an operator: find routers, robots and learners (`discovery/`), read their states
and call services (`service_calls.py`), by a short-lived, hidden node or by the node of a process
that runs anyway.

The thread that builds it calls its methods; the executor thread deposits the states.
"""

from __future__ import annotations

from collections.abc import Callable
import os
import time
from types import TracebackType

from rclpy.node import Node

from lerobot_serve.contract.records import EdgeState, ShadowSummary
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.operate.discovery.fleet_search import FleetSearch, is_old, LearnerSearch
from lerobot_serve.tools.operate.discovery.graph_search import STATE
from lerobot_serve.tools.operate.discovery.known_nodes import KnownNodes
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.learners import LearnerView
from lerobot_serve.tools.operate.names import operator_name
from lerobot_serve.tools.operate.outcome import NotReached, WITHOUT_ROUTER


class FleetClient(FleetSearch):
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
        self._runtime = None if node else NodeRuntime([])
        super().__init__(node or _own_node(self._runtime), timeout_s, known)
        self.operator = operator or operator_name()
        self._learners = LearnerSearch(self._node, self._states)

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
        else:
            self._states.close()

    # learners; see LearnerSearch

    def find_learners(self) -> list[LearnerView]:
        return self._learners.find(self.timeout_s)

    def last_learners(self) -> list[LearnerView]:
        return self._learners.now()

    # states

    def router(self, name: str) -> RouterView:
        """Return the newest state of a router. Raises NotReached when none arrives."""
        self._watch_router(name)
        found = self._states.wait(lambda: self._router_now(name), self.timeout_s)
        if not found:
            raise NotReached(
                f'{name} is found and publishes no state within {self.timeout_s:g} s: it was '
                f'killed, hangs, or is not configured. {WITHOUT_ROUTER}'
            )
        return found

    def last_router(self, name: str) -> RouterView | None:
        """Return the newest state of a router without waiting; None before the first."""
        self._watch_router(name)
        return self._router_now(name)

    def wait_for_router(
        self, name: str, accepts: Callable[[RouterView], bool], timeout_s: float | None = None
    ) -> RouterView | None:
        """Return the first state that is accepted; None when none arrives in time."""
        self._watch_router(name)

        def accepted() -> RouterView | None:
            found = self._router_now(name)
            return found if found and accepts(found) else None

        return self._states.wait(accepted, self.timeout_s if timeout_s is None else timeout_s)

    def shadow(self, router: str, timeout_s: float | None = None) -> ShadowSummary | None:
        """Return the comparison of the shadow of a router; None when none arrives in time."""
        topic = f'{router}/shadow_summary'
        self._states.watch(ShadowSummary, topic)
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        found = self._states.wait(lambda: self._states.get(topic), limit_s)
        return found.message if found else None

    def wait_for_robot(
        self, node: str, accepts: Callable[[RobotView], bool], timeout_s: float | None = None
    ) -> RobotView | None:
        """Return the first new state that is accepted; None when none arrives in time."""
        topic = node + STATE
        self._states.watch(EdgeState, topic)

        def accepted() -> RobotView | None:
            found = self._states.get(topic)
            # the latched state of a robot that hangs confirms nothing
            view = RobotView(node, found.message) if found and not is_old(found) else None
            return view if view and accepts(view) else None

        return self._states.wait(accepted, self.timeout_s if timeout_s is None else timeout_s)

    def _router_now(self, name: str) -> RouterView | None:
        """Return the state of a router, None before both topics have arrived."""
        state, canary = (self._states.get(f'{name}/{topic}') for topic in ('state', 'canary'))
        if not state or not canary:
            return None
        age_s = time.monotonic() - max(state.at_s, canary.at_s)
        return RouterView(name, state.message, canary.message, age_s)


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
