# SPDX-License-Identifier: Apache-2.0
"""
A requester around a fake transport and a clock that a test moves, or that runs with its waiting.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
import heapq
from itertools import count
import threading

import numpy as np

from lerobot_serve.contract.data_path.execution_report import ExecutionReport
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.edge.action_queue import ActionQueue
from lerobot_serve.edge.inputs.latest import LatestInputs, ObservationHistory
from lerobot_serve.edge.latency import LatencyTracker
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.chunk_merging import ChunkMerger
from lerobot_serve.edge.session.connection import Connection, ConnectionChange
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest, RequestPipeline, SessionStatus
from lerobot_serve.edge.session.request import RequestParts, RobotSession
from lerobot_serve.edge.session.requester import Requester
from lerobot_serve.edge.session.servers import ServerLiveliness
from lerobot_serve.edge.session.transport.fake_transport import (
    FakeObservations,
    FakeTransport,
    reply_bytes,
)
from lerobot_serve.session.failover import ServerSelection
from support.replacing import replace

WAIT_S = 10.0
MS = 1_000_000
S = 1000 * MS
CHUNK = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
# so much buffer that it asks again as soon as it was answered
# and one timeout ends a session: what several mean is in test_requester_failures
STEP_S = 0.001
SETTINGS = EdgeParameters(
    request_threshold_s=60.0,
    request_timeout_s=60.0,
    degraded_after_s=1.0,
    max_consecutive_timeouts=1,
)
ABC = ('/a', '/b', '/c')
# more than any test needs: who waits or looks at the clock so often does not wait at all
WAITS_LIMIT = 20_000


class Bench:
    """A requester, its fake transport, and a clock that stands still unless it is moved."""

    def __init__(
        self,
        *open_errors: Exception,
        client_id: str = 'robot_1',
        servers: tuple[str, ...] = ('/policy_server',),
        listener: EdgeListener | None = None,
        step_s: float = STEP_S,
        **settings: object,
    ):
        self.now_ns, self.step_s = 0, step_s
        self.listener = listener = listener or EdgeListener()
        self.changes: list[ConnectionChange] = []
        self.transport, self.observations = FakeTransport(*open_errors), FakeObservations()
        self.inputs, self.actions = LatestInputs({'state': 10**18}), ActionQueue()
        self.history = ObservationHistory(self.inputs)
        self.inputs.deposit('state', np.zeros(3, np.float32), 0)
        self.latency = LatencyTracker()
        self.executed = ExecutionReport()
        self.connection = Connection(self.clock, on_change=self._on_change)
        self.parts = RequestParts(self.history, self.observations, lambda: self.executed)
        self.session = RobotSession(client_id, 2**32 - 1)
        self.merger = ChunkMerger(self.actions, 3, step_s=step_s, latency=self.latency)
        self.pipeline = RequestPipeline(
            self.transport,
            self.session,
            self.parts,
            self.merger,
            status=SessionStatus(),
            clock=self.clock,
            listener=listener,
        )
        self.pipeline.set_episode(EpisodeRequest('fold the towel'))
        self.servers = ServerSelection(
            servers, first_backoff_s=1.0, max_backoff_s=4.0, random=lambda: 0.5
        )
        self.settings = replace(SETTINGS, **settings)
        self.inbox = self.make_inbox(client_id)
        self.liveliness = ServerLiveliness(2.0, self.inbox.wake)
        self.requester = Requester(
            self.transport,
            self.pipeline,
            self.connection,
            self.servers,
            self.liveliness,
            self.inbox,
            settings=self.settings,
        )
        self.thread = threading.Thread(target=self.requester.run)

    def make_inbox(self, client_id: str) -> Inbox:
        return Inbox(client_id, self.clock)

    def clock(self) -> int:
        return self.now_ns

    @property
    def drops(self) -> dict[str, int]:
        return {reason: n for reason, n in self.pipeline.status.dropped.items() if n}

    @property
    def states(self) -> list[str]:
        """The names of the states it has been in."""
        return [change.after.name for change in self.changes]

    def _on_change(self, change: ConnectionChange) -> None:
        self.changes.append(change)
        self.listener.changed(change)

    def send_request(self) -> Observation:
        """Let the pipeline send a request, in a session, and return it."""
        if not self.session.is_open:
            epoch = self.session.begin_request()
            self.pipeline.begin_session(self.servers.current, epoch, self.transport.agreement)
        assert self.pipeline.send_request(self.settings)
        return self.request()

    def request(self) -> Observation:
        return self.transport.request()

    def answer(self, request: Observation, robot: np.ndarray = CHUNK, **changes: object) -> None:
        self.inbox.put_reply(reply_bytes(request, robot, **changes))

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
        self, *open_errors: Exception, servers: tuple[str, ...] = ABC, **settings: object
    ) -> None:
        times = {'step_s': 0.1, 'request_threshold_s': 0.5, 'request_timeout_s': 1.0}
        self._looks = 0
        super().__init__(*open_errors, servers=servers, **{**times, **settings})
        self.round_trip_s = 0.05
        self.answers: dict[str, dict | None] = {}
        self.requests: list[tuple[float, str, Observation]] = []
        self.waits: list[float] = []
        self.transport.on_request = self._on_request
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._number = count()

    def make_inbox(self, client_id: str) -> Inbox:
        return VirtualTimeInbox(client_id, self)

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
        steps = round(until_s / self.step_s)
        for step in range(1, steps):
            self.at(step * self.step_s, self._live)

    def _live(self) -> None:
        self.inputs.deposit('state', np.zeros(3, np.float32), self.now_ns)
        self.actions.take()

    def run(self, seconds: float) -> None:
        """Let the requester run until then; it is closed afterwards."""
        self.at(seconds, self.requester.close)
        self.requester.run()

    def wait(self, timeout_s: float, until: Callable[[], object]) -> None:
        """Let time pass, at most so much of it, with what is due in it."""
        self.waits.append(timeout_s)
        assert len(self.waits) < WAITS_LIMIT, 'it waits without waiting'
        end_ns = self.now_ns + int(timeout_s * S)
        while not until():
            if not self._due or self._due[0][0] > end_ns:
                self.now_ns = end_ns
                return
            at_ns, _, act = heapq.heappop(self._due)
            self.now_ns = max(self.now_ns, at_ns)
            act()

    def _on_request(self, request: Observation) -> None:
        server = self.transport.servers[-1]
        self.requests.append((self.now_s, server, request))
        changes = self.answers.get(server, {})
        if changes is not None:
            self.at(self.now_s + self.round_trip_s, lambda: self.answer(request, **changes))


class VirtualTimeInbox(Inbox):
    """Waits in the time of a simulation."""

    def __init__(self, client_id: str, simulation: Simulation) -> None:
        super().__init__(client_id, simulation.clock)
        self._simulation, self._arrived = simulation, deque()

    def take(self, wait_s: float) -> tuple[bytes, int] | None:
        self._simulation.wait(wait_s, until=lambda: self._arrived)
        return self._arrived.popleft() if self._arrived else None

    def sleep(self, seconds: float) -> None:
        self._simulation.now_ns += int(seconds * S)

    def _put(self, item: tuple[bytes, int] | None) -> None:
        self._arrived.append(item)


@contextmanager
def starting() -> Iterator[Callable[..., Bench]]:
    """Give a function that starts a bench, given or made; each is closed at the end."""
    started = []

    def begin(bench: Bench | None = None, **settings: object) -> Bench:
        started.append(bench or Bench(**settings))
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
