# SPDX-License-Identifier: Apache-2.0
"""
Simulate robots and servers in virtual time: queue, batches, loss of a server. Pure.

The simulation follows the nodes. A robot sends requests at its rate, with one in flight; if the
reply arrives after the next request is due, it sends that request at once. A server serves its
robots in the order of arrival and may batch requests; a newer request supersedes the older one of
the same robot. After the loss of a server and `failover_s`, its robots move to the servers with
the fewest robots and resend their pending requests. A robot plays its chunk and stalls when its
queue is empty. It begins in the middle of an episode, with the queue it has at every request.

Events are kept in a heap. Events that are due at the same time run in the order in which they were
scheduled, so that equal seeds give equal runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
import heapq
from itertools import islice
import random
from typing import ParamSpec

from lerobot_serve.tools.plan.demand import FleetDemand, ServerShare, ServiceTime, SimulationResult

Arguments = ParamSpec('Arguments')
# shorter gaps are rounding errors
SHORTEST_STALL_S = 1e-9


@dataclass(slots=True, eq=False)
class SimulatedRobot:
    """`empty_at_s`: when its chunk ends; `blocked_since_s`: when its next request was due."""

    server: SimulatedServer
    pending: SimulatedRequest | None = None
    empty_at_s: float = 0.0
    blocked_since_s: float | None = None
    turn: int = 0
    is_stalled: bool = False
    # number of the router that it names first; without effect where there are none
    router: int = 0


@dataclass(slots=True, eq=False)
class SimulatedRequest:
    """`captured_s` is the time of its observation."""

    robot: SimulatedRobot
    captured_s: float
    server: SimulatedServer
    router: int
    is_ended: bool = False


@dataclass(slots=True, eq=False)
class SimulatedServer:
    """`queue` maps each waiting robot to its request and the time of its arrival."""

    robots: int = 0
    is_alive: bool = True
    queue: dict[SimulatedRobot, tuple[SimulatedRequest, float]] = field(default_factory=dict)
    serving: list[SimulatedRequest] = field(default_factory=list)
    chunks: int = 0
    busy_s: float = 0.0
    blocked_s: float = 0.0


def simulate_fleet(
    fleet: FleetDemand,
    service: ServiceTime,
    servers: int,
    *,
    seconds: float,
    seed: int = 1,
    server_loss_at_s: float | None = None,
    begin_s: Sequence[float] | None = None,
) -> SimulationResult:
    """
    Simulate `seconds` and return the counts. The first server is lost at `server_loss_at_s`.
    Robots send their first request at `begin_s`, by default at random points of the period.
    """
    run = FleetSimulation(fleet, service, servers, seconds, seed)
    run.run(begin_s, server_loss_at_s)
    return run.result()


class FleetSimulation:
    """One run; see the module."""

    def __init__(
        self, fleet: FleetDemand, service: ServiceTime, servers: int, seconds: float, seed: int
    ) -> None:
        self._fleet, self._service, self._seconds = fleet, service, seconds
        self._random = random.Random(seed)
        self._servers = [SimulatedServer() for _ in range(servers)]
        self._robots: list[SimulatedRobot] = []
        for number in range(fleet.robots):
            server = self._servers[number % servers]
            server.robots += 1
            self._robots.append(SimulatedRobot(server))
        self._one_way_s = fleet.network_s / 2
        self._now_s = 0.0
        # heap of (time, number); number -> event
        self._due: list[tuple[float, int]] = []
        self._events: dict[int, Callable[[], None]] = {}
        self._scheduled = 0
        self._requests = self._superseded = 0
        self._lost: Counter[str] = Counter()
        self._latencies_s: list[float] = []
        self._stalled_s = 0.0

    def run(self, begin_s: Sequence[float] | None, server_loss_at_s: float | None) -> None:
        """Run all events until the last request has ended."""
        for number, robot in enumerate(self._robots):
            at_s = self._random.random() * self._fleet.period_s
            at_s = begin_s[number] if begin_s else at_s
            robot.empty_at_s = at_s + max(0.0, self._fleet.buffer_s)
            self._schedule(at_s, self._on_request_due, robot, 0)
        if server_loss_at_s is not None:
            self._schedule(server_loss_at_s, self._on_server_loss, self._servers[0])
        while self._due:
            self._now_s, number = heapq.heappop(self._due)
            self._events.pop(number)()
        for robot in self._robots:
            self._add_stall(robot, self._seconds)

    def result(self) -> SimulationResult:
        """Return the counts of the run."""
        return SimulationResult(
            seconds=self._seconds,
            requests=self._requests,
            answered=len(self._latencies_s),
            superseded=self._superseded,
            lost=self._lost,
            latencies_s=tuple(sorted(self._latencies_s)),
            stalled=sum(robot.is_stalled for robot in self._robots),
            stalled_s=self._stalled_s,
            servers=tuple(self._share(server) for server in self._servers),
        )

    def _share(self, server: SimulatedServer) -> ServerShare:
        blocked_share = (
            server.blocked_s / (self._seconds * server.robots) if server.robots else 0.0
        )
        return ServerShare(
            server.robots, server.chunks, server.busy_s / self._seconds, blocked_share
        )

    def _schedule(
        self,
        at_s: float,
        on_time: Callable[Arguments, None],
        /,
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> None:
        self._scheduled += 1
        self._events[self._scheduled] = partial(on_time, *args, **kwargs)
        heapq.heappush(self._due, (at_s, self._scheduled))

    def _clip_to_end_s(self, at_s: float) -> float:
        return min(at_s, self._seconds)

    # robots

    def _on_request_due(self, robot: SimulatedRobot, turn: int) -> None:
        """Send a request, unless one is in flight."""
        if turn != robot.turn or self._now_s >= self._seconds:
            return
        robot.blocked_since_s = self._now_s
        if robot.pending is None or not self._fleet.request_timeout_s:
            self._send_request(robot, self._now_s)

    def _send_request(self, robot: SimulatedRobot, captured_s: float) -> None:
        if robot.blocked_since_s is not None:
            robot.server.blocked_s += self._now_s - robot.blocked_since_s
            robot.blocked_since_s = None
        request = robot.pending = SimulatedRequest(robot, captured_s, robot.server, robot.router)
        self._requests += 1
        robot.turn += 1
        jitter = self._fleet.jitter * (2 * self._random.random() - 1)
        due_s = captured_s + self._fleet.period_s * (1 + jitter)
        self._schedule(max(due_s, self._now_s), self._on_request_due, robot, robot.turn)
        if self._fleet.request_timeout_s:
            self._schedule(
                self._now_s + self._fleet.request_timeout_s, self._on_request_timeout, request
            )
        self._to_server(request)

    def _to_server(self, request: SimulatedRequest) -> None:
        self._schedule(self._now_s + self._one_way_s, self._on_arrival, request)

    def _to_robot(self, request: SimulatedRequest) -> None:
        self._schedule(self._now_s + self._one_way_s, self._on_reply, request)

    def _on_request_timeout(self, request: SimulatedRequest) -> None:
        """Send a new observation; a reply to the old one counts as late."""
        if request.robot.pending is request and self._now_s < self._seconds:
            self._send_request(request.robot, self._now_s)

    def _on_reply(self, request: SimulatedRequest) -> None:
        robot, request.is_ended = request.robot, True
        if robot.pending is not request:
            self._lost['late_chunk'] += 1
            return
        robot.pending = None
        self._latencies_s.append(self._now_s - request.captured_s)
        self._play(robot, request.captured_s)
        if robot.blocked_since_s is None:
            return
        if self._now_s < self._seconds:
            self._send_request(robot, self._now_s)
        else:
            robot.server.blocked_s += self._seconds - robot.blocked_since_s

    def _play(self, robot: SimulatedRobot, captured_s: float) -> None:
        """
        Replace the queue with the chunk. As an edge controller does by default, skip the rows
        whose time has passed, except those of the time in which the robot stood still.
        """
        fleet, now_s = self._fleet, self._now_s
        self._add_stall(robot, now_s)
        skipped_s = min(now_s - captured_s, max(0.0, robot.empty_at_s - captured_s))
        end_s = min(now_s + fleet.chunk_s - skipped_s, captured_s + fleet.max_age_s)
        robot.empty_at_s = max(end_s, now_s)

    def _add_stall(self, robot: SimulatedRobot, until_s: float) -> None:
        """Add the time without actions."""
        stalled_s = self._clip_to_end_s(until_s) - robot.empty_at_s
        if stalled_s > SHORTEST_STALL_S:
            robot.is_stalled = True
            self._stalled_s += stalled_s

    # servers

    def _on_arrival(self, request: SimulatedRequest) -> None:
        server, robot = request.server, request.robot
        if not server.is_alive:
            self._drop_request(request)
            if robot.server is not server:
                self._resend_request(robot)
            return
        older, since_s = server.queue.get(robot, (None, self._now_s))
        if older:
            older.is_ended = True
            self._superseded += 1
        server.queue[robot] = request, since_s
        self._serve(server)

    def _serve(self, server: SimulatedServer) -> None:
        """Start the next batch when the server is idle and requests wait."""
        if server.serving or not server.queue or not server.is_alive:
            return
        service, waiting = self._service, len(server.queue)
        full_batch = min(service.batch, server.robots)
        if waiting < full_batch:
            _, since_s = next(iter(server.queue.values()))
            window_end_s = since_s + service.window_s
            if self._now_s < window_end_s:
                self._schedule(window_end_s, self._serve, server)
                return
        first = list(islice(server.queue, service.batch))
        server.serving = [server.queue.pop(robot)[0] for robot in first]
        done_s = self._now_s + service.batch_time_s(len(first))
        server.busy_s += self._clip_to_end_s(done_s) - self._clip_to_end_s(self._now_s)
        self._schedule(done_s, self._on_done, server)

    def _on_done(self, server: SimulatedServer) -> None:
        for request in server.serving:
            self._to_robot(request)
        server.chunks += len(server.serving)
        server.serving = []
        self._serve(server)

    # loss of a server

    def _on_server_loss(self, server: SimulatedServer) -> None:
        server.is_alive = False
        for request in [*server.serving, *(request for request, _ in server.queue.values())]:
            self._drop_request(request)
        server.serving, server.queue = [], {}
        self._schedule(self._now_s + self._fleet.failover_s, self._on_failover, server)

    def _drop_request(self, request: SimulatedRequest) -> None:
        request.is_ended = True
        self._lost['server_lost'] += 1

    def _on_failover(self, server: SimulatedServer) -> None:
        """Move each robot of a lost server to the server with the fewest robots."""
        others = [(other.robots, i) for i, other in enumerate(self._servers) if other.is_alive]
        heapq.heapify(others)
        for robot in self._robots:
            if robot.server is not server or not others:
                continue
            count, number = heapq.heappop(others)
            heapq.heappush(others, (count + 1, number))
            robot.server = self._servers[number]
            robot.server.robots += 1
            server.robots -= 1
            self._resend_request(robot)

    def _resend_request(self, robot: SimulatedRobot) -> None:
        """Resend a lost request to the new server."""
        if robot.pending and robot.pending.is_ended:
            self._send_request(robot, robot.pending.captured_s)
