# SPDX-License-Identifier: Apache-2.0
"""
A requester around a fake link and a clock that a test moves, or that runs with its waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
import heapq
from itertools import count
import queue
import threading

import numpy as np

from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.queue.action_queue import ActionQueue
from lerobot_serve.edge.queue.latency import LatencyTracker
from lerobot_serve.edge.session.connection import Connection
from lerobot_serve.edge.session.fake_transport import FakeTransport, reply_bytes
from lerobot_serve.edge.session.pipeline import RequestPipeline
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.server_liveliness import ServerLiveliness
from lerobot_serve.edge.session.servers import ServerSelection
from lerobot_serve.edge.session.transport import EpisodeRequest, RequestSettings
from lerobot_serve.wire.execution_report import ExecutionReport
from lerobot_serve.wire.observation import Observation

WAIT_S = 10.0
MS = 1_000_000
S = 1000 * MS
CHUNK = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
# so much buffer that it asks again as soon as it was answered
# and one timeout ends a session: what several mean is in test_requester_timeouts
PACE = RequestSettings(
    step_s=0.001,
    request_threshold_s=60.0,
    request_timeout_s=60.0,
    append=True,
    max_consecutive_timeouts=1,
)
ABC = ('/a', '/b', '/c')
# more than any test needs: who waits or looks at the clock so often does not wait at all
WAITS_LIMIT = 20_000


class Bench:
    """A requester, its fake link, and a clock that stands still unless it is moved."""

    def __init__(
        self,
        *open_errors: Exception,
        client_id: str = 'robot_1',
        servers: tuple[str, ...] = ('/policy_server',),
        listener: EdgeListener | None = None,
        **pace: object,
    ):
        self.now_ns = 0
        listener = listener or EdgeListener()
        self.link = FakeTransport(*open_errors)
        self.inputs, self.actions = LatestInputs({'state': 10**18}), ActionQueue()
        self.history = ObservationHistory(self.inputs)
        self.inputs.deposit('state', np.zeros(3, np.float32), 0)
        self.latency = LatencyTracker()
        self.executed = ExecutionReport()
        self.connection = Connection(self.clock, tell=listener.changed)
        self.exchange = RequestPipeline(
            self.link,
            self.history,
            self.actions,
            self.latency,
            lambda: self.executed,
            client_id=client_id,
            action_count=3,
            first_epoch=2**32 - 1,
            clock=self.clock,
            listener=listener,
        )
        self.exchange.name_episode(EpisodeRequest('fold the towel'))
        self.servers = ServerSelection(
            servers, first_backoff_s=1.0, max_backoff_s=4.0, random=lambda: 0.5
        )
        self.pace = replace(PACE, **pace)
        self.presence = ServerLiveliness(2.0)
        self.requester = Requester(
            self.link,
            self.exchange,
            self.actions,
            self.connection,
            self.servers,
            self.presence,
            pace=self.pace,
            clock=self.clock,
        )
        self.thread = threading.Thread(target=self.requester.run)

    def clock(self) -> int:
        return self.now_ns

    @property
    def drops(self) -> dict[str, int]:
        return {reason: n for reason, n in self.exchange.drops.items() if n}

    @property
    def states(self) -> list[str]:
        """The names of the states it has been in."""
        changes = self.connection.changes
        return [change.after.name for change in changes]

    def ask(self) -> Observation:
        """Let the exchange send a request, and return it."""
        assert self.exchange.ask(self.pace)
        return self.request()

    def request(self) -> Observation:
        return self.link.request()

    def answer(self, request: Observation, robot: np.ndarray = CHUNK, **changes: object) -> None:
        self.requester.on_chunk(reply_bytes(request, robot, **changes))

    def close(self) -> None:
        self.requester.close()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


class Simulation(Bench):
    """
    A bench whose requester runs in the test's own thread, in a time that passes while it waits.

    Each server answers after `round_trip_s` with what `answers` has for it: changes of a chunk, or
    None for silence.
    """

    def __init__(
        self, *open_errors: Exception, servers: tuple[str, ...] = ABC, **pace: object
    ) -> None:
        pace = {'step_s': 0.1, 'request_threshold_s': 0.5, 'request_timeout_s': 1.0, **pace}
        self._looks = 0
        super().__init__(*open_errors, servers=servers, **pace)
        self.round_trip_s = 0.05
        self.answers: dict[str, dict | None] = {}
        self.requests: list[tuple[float, str, Observation]] = []
        self.waits: list[float] = []
        self.link.heard = self._on_request
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._number, self._arrived = count(), deque()
        self.requester._arrived = self
        self.requester._stop.wait = self._wait

    def clock(self) -> int:
        self._looks += 1
        assert self._looks < 10 * WAITS_LIMIT, 'it looks at the clock without waiting'
        return self.now_ns

    @property
    def now_s(self) -> float:
        return self.now_ns / S

    def at(self, seconds: float, act: Callable[[], object]) -> None:
        heapq.heappush(self._due, (round(seconds * S), next(self._number), act))

    def play(self, until_s: float) -> None:
        """Let the robot sense and take an action each control step."""
        steps = round(until_s / self.pace.step_s)
        for step in range(1, steps):
            self.at(step * self.pace.step_s, self._live)

    def _live(self) -> None:
        self.inputs.deposit('state', np.zeros(3, np.float32), self.now_ns)
        self.actions.take()

    def run(self, seconds: float) -> None:
        """Let the requester run until then; it is closed afterwards."""
        self.at(seconds, self.requester.close)
        self.requester.run()

    def put(self, item: object) -> None:
        self._arrived.append(item)

    def get(self, timeout: float) -> object:
        self.waits.append(timeout)
        assert len(self.waits) < WAITS_LIMIT, 'it waits without waiting'
        end_ns = self.now_ns + int(timeout * S)
        while not self._arrived:
            if not self._due or self._due[0][0] > end_ns:
                self.now_ns = end_ns
                raise queue.Empty
            at_ns, _, act = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, at_ns)
            act()
        return self._arrived.popleft()

    def _wait(self, timeout: float) -> bool:
        self.now_ns += int(timeout * S)
        return self.requester._stop.is_set()

    def _on_request(self, request: Observation) -> None:
        server = self.link.servers[-1]
        self.requests.append((self.now_s, server, request))
        changes = self.answers.get(server, {})
        if changes is not None:
            self.at(self.now_s + self.round_trip_s, lambda: self.answer(request, **changes))


@contextmanager
def starting() -> Iterator[Callable[..., Bench]]:
    """Give a function that starts a bench, given or made; each is closed at the end."""
    started = []

    def begin(bench: Bench | None = None, **pace: object) -> Bench:
        started.append(bench or Bench(**pace))
        started[-1].thread.start()
        return started[-1]

    yield begin
    for bench in started:
        bench.close()


def played(bench: Bench) -> list[list[float]]:
    rows = []
    while planned := bench.actions.take():
        rows.append(planned.action.tolist())
    return rows
