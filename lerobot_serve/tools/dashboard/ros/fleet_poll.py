# SPDX-License-Identifier: Apache-2.0
"""
The poll thread: takes the newest states three times a second, and publishes what changed.

Parameters that states do not carry are read in a thread of its own, because a node that hangs does
not reply; the poll thread asks and reads what is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
import itertools
import queue
import threading
import time
from typing import Any

from lerobot_serve.contract.codec import decode
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import CanaryState, EpisodeOutcome, RouterState, ShadowSummary
from lerobot_serve.errors import UserError
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.tools.dashboard.command_runner import Loading
from lerobot_serve.tools.dashboard.document.fleet_document import Turn
from lerobot_serve.tools.dashboard.document.fleet_recorder import (
    FleetRecorder,
    LEARNER,
    ROBOT,
    ROUTER,
)
from lerobot_serve.tools.dashboard.ros.fleet_topics import (
    CANARY,
    FleetTopics,
    OUTCOME,
    OUTCOMES_A_TURN,
    SHADOW,
    TYPES,
    WatchedSource,
)
from lerobot_serve.tools.operate.fleet_client import FleetClient
from lerobot_serve.tools.operate.fleet_state import RobotView, RouterView
from lerobot_serve.tools.operate.learners import LearnerView
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


# a change is visible within 500 ms, with time to spare for a busy machine
POLL_S, COUNT_S = 1 / 3, 1.0


class FleetPoll:
    """Owned by the poll thread; `malformed` counts the messages that are no such message."""

    def __init__(
        self,
        topics: FleetTopics,
        recorder: FleetRecorder,
        parameters: ParameterReader,
        publish: Callable[[Turn], None],
        viewer_count: Callable[[], int],
    ) -> None:
        self._topics, self._recorder, self._parameters = topics, recorder, parameters
        self._publish, self._viewer_count = publish, viewer_count
        # router -> its newest messages, by their class
        self._routers: dict[str, dict[type, Any]] = {}
        self._next_count_s = 0.0
        self._outcomes: deque[tuple[str, str]] = deque()
        self._loadings: deque[tuple[str, Loading]] = deque()
        self.malformed = 0

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        while not stop.wait(POLL_S):
            self.poll(time.monotonic())
        self._topics.close()

    def deposit_outcome(self, episode_id: str, outcome: str) -> None:
        """Note an outcome that the page reported. Any thread."""
        self._outcomes.append((episode_id, outcome))

    def deposit_loading(self, router: str, loading: Loading) -> None:
        """Note a step of a rollout that the page begins or ends. Any thread."""
        self._loadings.append((router, loading))

    def poll(self, now_s: float) -> None:
        """Take the newest states, and publish what changed."""
        self._topics.discover()
        if now_s >= self._next_count_s:
            self._next_count_s = now_s + COUNT_S
            self._topics.count_publishers()
        for source in self._topics.sources:
            self._poll_source(source, now_s)
        while self._outcomes:
            self._recorder.on_outcome(*self._outcomes.popleft())
        while self._loadings:
            self._recorder.on_loading(*self._loadings.popleft())
        if turn := self._recorder.turn(now_s, self._viewer_count()):
            self._publish(turn)

    def _poll_source(self, source: WatchedSource, now_s: float) -> None:
        raw = source.state.take()
        if source.kind == ROUTER:
            self._poll_router(source, raw, now_s)
        elif raw is not None:
            self._on_state(source, raw, now_s)
        heard = source.heard
        if raw is None and heard.is_silent(now_s, source.publishers):
            assert heard.last_s is not None
            self._recorder.on_silent(
                source.kind,
                source.node,
                last_s=heard.last_s,
                has_publisher=source.publishers > 0,
                now_s=now_s,
            )
            if heard.is_gone(now_s, source.publishers):
                self._forget(source)

    def _on_state(self, source: WatchedSource, raw: bytes, now_s: float) -> None:
        """Deposit the state of a robot, server or learner; bytes that are none do not count."""
        node = source.node
        try:
            state: Any = decode(TYPES[source.kind], raw)
            if source.kind == ROBOT:
                limit_s = self._parameters.age_limit_s(node, now_s)
                self._recorder.on_robot(RobotView(node, state), limit_s, now_s)
            elif source.kind == LEARNER:
                self._recorder.on_learner(LearnerView(node, state), now_s)
            else:
                self._recorder.on_server(node, state, now_s)
        except Exception:
            # whatever one source sends ends no dashboard
            self.malformed += 1
            return
        source.heard.on_message(now_s)

    def _poll_router(self, source: WatchedSource, raw: bytes | None, now_s: float) -> None:
        self._take_outcomes(source)
        taken: dict[type, bytes | None] = {
            RouterState: raw,
            CanaryState: source.others[CANARY].take(),
            ShadowSummary: source.others[SHADOW].take(),
        }
        try:
            new: dict[type, Any] = {
                kind: decode(kind, data) for kind, data in taken.items() if data is not None
            }
        except Malformed:
            self.malformed += 1
            return
        if raw is not None:
            source.heard.on_message(now_s)
        known = self._routers.setdefault(source.node, {})
        known |= new
        if new and RouterState in known and CanaryState in known:
            canary = known[CanaryState]
            mark = (canary.state, canary.step_count, canary.candidate_policy)
            settings = self._parameters.settings(source.node, mark, now_s)
            view = RouterView(source.node, known[RouterState], canary)
            self._recorder.on_router(view, settings, known.get(ShadowSummary), now_s)

    def _take_outcomes(self, source: WatchedSource) -> None:
        for raw in source.others[OUTCOME].take_all(OUTCOMES_A_TURN):
            try:
                message = decode(EpisodeOutcome, raw)
            except Malformed:
                self.malformed += 1
                continue
            if message.outcome in tuple(EpisodeOutcome.Outcome):
                self._recorder.on_outcome(message.episode_id, message.outcome.word)

    def _forget(self, source: WatchedSource) -> None:
        self._topics.forget(source)
        self._recorder.forget(source.kind, source.node)
        self._parameters.forget(source.node)
        self._routers.pop(source.node, None)
