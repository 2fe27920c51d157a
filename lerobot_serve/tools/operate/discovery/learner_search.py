# SPDX-License-Identifier: Apache-2.0
"""
Find learners and their newest states, also of those that fall silent. The thread of a client.

A learner that was found stays: one that ends or hangs is silent from then on.
"""

from __future__ import annotations

import time

from rclpy.node import Node

from lerobot_serve.contract.records import LearnerState
from lerobot_serve.tools.operate.discovery.graph_search import GRAPH_POLL_S, GraphSearch, STATE
from lerobot_serve.tools.operate.discovery.latched_states import LatchedStates
from lerobot_serve.tools.operate.learners.learner_state import (
    Arrivals,
    Hearing,
    hearing,
    LearnerView,
    NOT_HEARD,
    silent_for_s,
)

# the graph costs more the larger it is
LOOK_PERIOD_S = 1.0
# learners are shown beside a router that is found by then, and no verb acts on all that are found
SETTLE_S = 0.1


class LearnerSearch:
    """See the module."""

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
        while any(hearing(each) is Hearing.EXPECTED for each in self._arrivals().values()):
            if time.monotonic() >= end_s:
                break
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
        arrivals = self._arrivals()
        return [
            self._view(node, each)
            for node, each in sorted(arrivals.items())
            if hearing(each) is not Hearing.EXPECTED
        ]

    def _view(self, node: str, arrivals: Arrivals) -> LearnerView:
        found = self._states.get(node + STATE)
        state = found.message if found else NOT_HEARD
        return LearnerView(node, state, silent_for_s(arrivals))

    def _arrivals(self) -> dict[str, Arrivals]:
        return {node: self._arrivals_of(node, at_s) for node, at_s in self._found.items()}

    def _arrivals_of(self, node: str, found_at_s: float) -> Arrivals:
        now_s = time.monotonic()
        found = self._states.get(node + STATE)
        if found is None:
            return Arrivals(now_s - found_at_s)
        return Arrivals(now_s - found_at_s, found.arrivals, now_s - found.at_s, found.age_s)
