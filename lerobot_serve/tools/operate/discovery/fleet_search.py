# SPDX-License-Identifier: Apache-2.0
"""
Find routers, robots and learners, also those that are silent or were found before. The thread of a
client.

Only the graph is polled; every wait for a state has a limit. A learner that was found stays: one
that ends or hangs is silent from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
import time

from rclpy.node import Node

from lerobot_serve.contract.records import CanaryState, EdgeState, LearnerState, RouterState
from lerobot_serve.tools.operate.discovery.graph_search import (
    GRAPH_POLL_S,
    GraphSearch,
    LatchedStates,
    Received,
    STATE,
)
from lerobot_serve.tools.operate.discovery.known_nodes import KnownNodes
from lerobot_serve.tools.operate.fleet_state import HUNG, MISSING, MUTE, RobotView, silent
from lerobot_serve.tools.operate.learners import Arrivals, Hearing, hearing, LearnerView, NOT_HEARD
from lerobot_serve.tools.operate.service_calls import ServiceCalls

ROUTER_KIND, ROBOT_KIND = RouterState.__name__, EdgeState.__name__
# a state that is older by its own clock is of a robot that hangs, or whose clock is off: a new one
# decides. An edge publishes five times per second
OLD_STATE_S, NEW_STATE_S = 2.0, 1.2
# for the states of the last robots, after each that arrives
LAST_STATES_S = 1.0


class FleetSearch(ServiceCalls):
    """`known` are the nodes that this machine has found before; `timeout_s` limits each wait."""

    def __init__(self, node: Node, timeout_s: float, known: KnownNodes | None) -> None:
        super().__init__(node, timeout_s)
        self._states, self._known = LatchedStates(node), known

    def find_routers(self, wanted: str = '') -> list[str]:
        """Return the routers, at once when `wanted` is among them."""
        is_wanted = partial(is_named, wanted) if wanted else None
        found = self._graph_search(ROUTER_KIND).run(
            self.timeout_s, on_found=self._watch_router, is_wanted=is_wanted, lists_missing=True
        )
        if self._known and found and not wanted:
            self._known.replace(ROUTER_KIND, found)
        return found

    def known_routers(self) -> dict[str, float]:
        """Return the routers that were found in the last hour, with the age of that [s]."""
        seen, now_s = self._known.seen(ROUTER_KIND) if self._known else {}, time.time()
        return {node: now_s - at_s for node, at_s in seen.items()}

    def find_robot_nodes(self, on_found: Callable[[str], object]) -> list[str]:
        """Return the nodes of the robots without waiting for their states."""
        search = self._graph_search(ROBOT_KIND)
        return search.run(self.timeout_s, on_found=on_found, lists_missing=True)

    def known_robots(self) -> list[str]:
        """Return the nodes of the robots that were found in the last hour."""
        return [*self._known.seen(ROBOT_KIND)] if self._known else []

    def find_robots(self, wanted: str = '', *, may_be_none: bool = False) -> list[RobotView]:
        """
        Return the robots, without waiting for others when `wanted`, the name of a robot, its edge
        or its client, is among them. One that publishes nothing, or was found before and is not
        now, is SILENT. `may_be_none`: do not wait for a first one.
        """
        is_wanted = partial(self._is_robot, wanted) if wanted else None
        nodes = self._graph_search(ROBOT_KIND).run(
            self.timeout_s,
            on_found=lambda node: self._states.watch(EdgeState, node + STATE),
            is_wanted=is_wanted,
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

    @property
    def no_robot_text(self) -> str:
        """The error of a verb that finds no robot."""
        return (
            f'no robot is found within {self.timeout_s:g} s: check that its edge_controller runs, '
            'and that ROS_DOMAIN_ID is the same here and there (callers of a gateway are no '
            'robots: its log and metrics have them)'
        )

    def _watch_router(self, name: str) -> None:
        self._states.watch(RouterState, name + STATE)
        self._states.watch(CanaryState, f'{name}/canary')

    def _graph_search(self, kind: str) -> GraphSearch:
        return GraphSearch(self._node, kind, self._known.seen(kind) if self._known else {})

    def _is_robot(self, wanted: str, node: str) -> bool:
        """Return whether a name means a robot, also by its client_id once its state is there."""
        found = self._states.get(node + STATE)
        return is_named(wanted, node) or bool(found and found.message.client_id == wanted)

    def _wait_for_states(self, nodes: Sequence[str]) -> None:
        """Wait for a first state of each; for the last ones LAST_STATES_S after each arrival."""
        while missing := self._count_missing(nodes):
            is_first = missing == len(nodes)
            limit_s = self.timeout_s if is_first else min(LAST_STATES_S, self.timeout_s)

            def has_more(before: int = missing) -> bool:
                return self._count_missing(nodes) < before

            if not self._states.wait(has_more, limit_s):
                return

    def _count_missing(self, nodes: Sequence[str]) -> int:
        return sum(self._states.get(node + STATE) is None for node in nodes)

    def _wait_for_new_states(self, nodes: Sequence[str]) -> None:
        """Wait for a new state of those whose last one is old."""
        found = {node: self._states.get(node + STATE) for node in nodes}
        old = {node: state.arrivals for node, state in found.items() if state and is_old(state)}

        def are_new() -> bool:
            now = {node: self._states.get(node + STATE) for node in old}
            return all(state and state.arrivals > old[node] for node, state in now.items())

        self._states.wait(are_new, min(NEW_STATE_S, self.timeout_s))

    def _robot_now(self, node: str) -> RobotView:
        found = self._states.get(node + STATE)
        if found is None:
            return silent(RobotView(node), MUTE)
        robot = RobotView(node, found.message)
        return silent(robot, HUNG, found.age_s) if is_old(found) else robot

    def _missing(self, nodes: Sequence[str]) -> list[RobotView]:
        """Return the robots that were found before and are not now; remember those of now."""
        if not self._known:
            return []
        seen, now_s = self._known.seen(ROBOT_KIND), time.time()
        self._known.add(ROBOT_KIND, nodes)
        return [
            silent(RobotView(node), MISSING, now_s - at_s)
            for node, at_s in seen.items()
            if node not in nodes
        ]


def is_old(state: Received) -> bool:
    """Return whether a state is old, or from the future of a clock that is off."""
    return abs(state.age_s) > OLD_STATE_S


def is_named(wanted: str, node: str) -> bool:
    """Return whether a name means a node: its full name, or that of its namespace."""
    name = wanted.strip('/')
    return name in (node.strip('/'), node.rpartition('/')[0].strip('/'))


# the graph costs more the larger it is
LOOK_PERIOD_S = 1.0
# learners are shown beside a router that is found by then, and no verb acts on all that are found
SETTLE_S = 0.1


class LearnerSearch:
    """Finds learners, also those that fall silent. The thread of a client."""

    def __init__(self, node: Node, states: LatchedStates) -> None:
        self._graph = GraphSearch(node, LearnerState.__name__, (), SETTLE_S)
        self._states = states
        # node -> when it was found; by the monotonic clock
        self._found: dict[str, float] = {}
        self._next_look_s = 0.0

    def find(self, timeout_s: float) -> list[LearnerView]:
        """Return the learners, once no other one is expected and each has sent its state."""
        end_s = time.monotonic() + timeout_s
        self._graph.run(timeout_s, on_found=self._watch, may_be_none=True)
        while len(self._views()) < len(self._found) and time.monotonic() < end_s:
            time.sleep(GRAPH_POLL_S)
        return self._views()

    def now(self) -> list[LearnerView]:
        """Return the learners that are found by now, without waiting."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + LOOK_PERIOD_S
            for node in self._graph.look().nodes:
                self._watch(node)
        return self._views()

    def _watch(self, node: str) -> None:
        if node not in self._found:
            self._found[node] = time.monotonic()
            self._states.watch(LearnerState, node + STATE)

    def _views(self) -> list[LearnerView]:
        """Return the learners whose state has come, or will not."""
        views = []
        for node, found_at_s in sorted(self._found.items()):
            received, now_s = self._states.get(node + STATE), time.monotonic()
            arrivals = Arrivals(now_s - found_at_s)
            if received:
                arrivals = arrivals._replace(
                    states=received.arrivals,
                    arrived_s=now_s - received.at_s,
                    age_s=received.age_s,
                )
            found, silent_s = hearing(arrivals)
            if found is not Hearing.EXPECTED:
                state = received.message if received else NOT_HEARD
                views.append(LearnerView(node, state, silent_s))
        return views
