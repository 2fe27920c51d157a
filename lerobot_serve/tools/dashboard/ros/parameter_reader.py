# SPDX-License-Identifier: Apache-2.0
"""
Read parameters of routers and robots that their states do not carry. A thread of its own, because
a node that hangs does not reply; the poll thread asks and reads what is known.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import itertools
import queue
import threading

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.operations import read_settings
from lerobot_serve.tools.operate.outcome import ResultUnknown

AGE_LIMIT = 'max_action_age_s'
# a router whose plan changes publishes another state, at which it is asked at once
RETRY_S, REFRESH_S = 30.0, 60.0
ROUTER_RANK, ROBOT_RANK = 0, 1
WAIT_S = 0.5


class ParameterReader:
    """Answers with what is known, and reads in the background."""

    def __init__(self, open_client: Callable[[], FleetClient]) -> None:
        self._open_client = open_client
        # routers first, then in the order in which they were asked for: rank, number, node
        self._asked: queue.PriorityQueue[tuple[int, int, str]] = queue.PriorityQueue()
        self._numbers = itertools.count()
        # is asked for, or is being read: a read of a node that hangs lasts longer than a period
        self._waiting: set[str] = set()
        self._due_s: dict[str, float] = {}
        self._states: dict[str, object] = {}
        self._settings: dict[str, RouterParameters] = {}
        self._limits: dict[str, float] = {}

    # the poll thread

    def settings(self, router: str, state: object, now_s: float) -> RouterParameters:
        """Return the canary parameters of a router; ask again when its `state` has changed."""
        if self._states.get(router) != state:
            self._states[router] = state
            self._due_s[router] = now_s
        self._ask(ROUTER_RANK, router, now_s, REFRESH_S)
        return self._settings.get(router) or RouterParameters()

    def age_limit_s(self, robot: str, now_s: float) -> float | None:
        """Return the staleness bound of a robot; None while it is unknown."""
        limit = self._limits.get(robot)
        if limit is None:
            self._ask(ROBOT_RANK, robot, now_s, RETRY_S)
        return limit

    def _ask(self, rank: int, node: str, now_s: float, period_s: float) -> None:
        """Ask for a node that is due, unless it is asked for already."""
        if now_s >= self._due_s.get(node, 0.0) and node not in self._waiting:
            self._due_s[node] = now_s + period_s
            self._waiting.add(node)
            self._asked.put((rank, next(self._numbers), node))

    def forget(self, node: str) -> None:
        for known in (self._due_s, self._states, self._settings, self._limits):
            known.pop(node, None)

    # a thread of its own

    def run(self, stop: threading.Event) -> None:
        """Read what is asked for until `stop` is set."""
        with self._open_client() as client:
            while not stop.is_set():
                try:
                    rank, _, node = self._asked.get(timeout=WAIT_S)
                except queue.Empty:
                    continue
                self._read(client, node, is_router=rank == ROUTER_RANK)
                self._waiting.discard(node)

    def _read(self, client: FleetClient, node: str, *, is_router: bool) -> None:
        # what fails is asked again; until then the page shows no value
        with contextlib.suppress(UserError, ParameterError, ResultUnknown):
            if is_router:
                self._settings[node] = read_settings(client, node)
            else:
                value = client.get_parameters(node, [AGE_LIMIT]).get(AGE_LIMIT)
                if isinstance(value, float):
                    self._limits[node] = value
