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
