# SPDX-License-Identifier: Apache-2.0
"""
Simulate one site in virtual time: robots, routers, policy servers and the shared store. Pure.

Robots and servers are those of the simulation of a fleet. Each request and each reply passes one
router, which has one core: it needs half of the time of a request for either, in the order of
arrival. Robots are spread evenly over routers, and those of a lost router over the others. They
repeat their pending requests there. Each robot begins an episode every `episode_s`, plus or minus
the jitter, and a placement is queued for the store. The store is lost for a quarter of the run.

Episodes draw from a generator of their own: a run with another store has the same requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
import random

from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime, SimulationResult
from lerobot_serve.tools.plan.search import SimulationSettings
from lerobot_serve.tools.plan.simulation import FleetSimulation, SimulatedRequest, SimulatedRobot
from lerobot_serve.tools.plan.sites_costs import router_failover_s, SiteCosts, SiteShape

LOSS_AT, STORE_BACK_AT = 0.5, 0.75
ROUTER_LOST = 'router_lost'


@dataclass(frozen=True, slots=True)
class StoreResult:
    """
    Counts of one run.

    placements    episodes that routers have placed
    written       placements that are in the store in the end
    busy_s        time in which it writes
    most_waiting  largest number of placements that wait, the one being written included
    caught_up_s   time from its return until no placement waits; None where it was never away
    """

    placements: int
    written: int
    busy_s: float
    most_waiting: int
    caught_up_s: float | None


class SimulatedStore:
    """
    Writes placements one after the other, `write_s` each; routers never wait for it. After each
    `begin` that returns a turn, the caller calls `end` with it `write_s` later.
    """

    def __init__(self, write_s: float) -> None:
        self.write_s = write_s
        self._placements = self._written = self._waiting = self._most_waiting = 0
        self._is_away = self._is_writing = False
        # a transaction that began before the store was lost writes nothing
        self._turn = 0
        self._busy_s = 0.0
        self._back_s: float | None = None
        self._caught_up_s: float | None = None

    def place(self) -> None:
        """Queue one placement."""
        self._placements += 1
        self._waiting += 1
        self._most_waiting = max(self._most_waiting, self._waiting)

    def begin(self) -> int | None:
        """Begin a transaction and return its turn; None where none can begin."""
        if self._is_away or self._is_writing or not self._waiting:
            return None
        self._is_writing = True
        return self._turn

    def end(self, turn: int, now_s: float) -> None:
        """End the transaction of this turn."""
        if turn != self._turn:
            return
        self._is_writing = False
        self._waiting -= 1
        self._written += 1
        self._busy_s += self.write_s
        self._check_caught_up(now_s)

    def leave(self) -> None:
        """Be lost; the placement of a transaction under way waits again."""
        self._is_away, self._is_writing = True, False
        self._turn += 1

    def come_back(self, now_s: float) -> None:
        """Be there again."""
        self._is_away, self._back_s = False, now_s
        self._check_caught_up(now_s)

    def result(self) -> StoreResult:
        """Return the counts."""
        return StoreResult(
            self._placements, self._written, self._busy_s, self._most_waiting, self._caught_up_s
        )

    def _check_caught_up(self, now_s: float) -> None:
        if self._back_s is not None and self._caught_up_s is None and not self._waiting:
            self._caught_up_s = now_s - self._back_s


@unique
class Lost(Enum):
    """What is lost halfway through a run."""

    ROUTER = 'router'
    SERVER = 'server'
    STORE = 'store'


@dataclass(slots=True, eq=False)
class SimulatedRouter:
    """`free_at_s`: when it has done all that has arrived."""

    is_alive: bool = True
    free_at_s: float = 0.0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterShare:
    """One router: its robots at the end, and its busy share."""

    robots: int
    busy_share: float


@dataclass(frozen=True, slots=True)
class SiteResult:
    """One run of a site; `requests` also counts those lost with a router."""

    requests: SimulationResult
    routers: tuple[RouterShare, ...]
    store: StoreResult

    @property
    def router_share(self) -> float:
        """Largest busy share of a router."""
        return max(router.busy_share for router in self.routers)

    @property
    def server_share(self) -> float:
        """Largest busy share of a policy server."""
        return max(server.busy_share for server in self.requests.servers)


def simulate_site(
    fleet: FleetDemand,
    service: ServiceTime,
    costs: SiteCosts,
    shape: SiteShape,
    settings: SimulationSettings,
    loss: Lost | None = None,
) -> SiteResult:
    """Simulate a site and return its counts; `loss` is lost halfway through."""
    run = SiteSimulation(fleet, service, costs, shape, settings)
    run.lose(loss)
    run.run(None, LOSS_AT * settings.seconds if loss is Lost.SERVER else None)
    return run.site_result()


class SiteSimulation(FleetSimulation):
    """One run; see the module."""

    def __init__(
        self,
        fleet: FleetDemand,
        service: ServiceTime,
        costs: SiteCosts,
        shape: SiteShape,
        settings: SimulationSettings,
    ) -> None:
        super().__init__(fleet, service, shape.servers, settings.seconds, settings.seed)
        self._costs = costs
        # both directions pass the network twice: to the router, and from it
        self._leg_s = self._one_way_s / 2
        self._pass_s = costs.router_s / 2
        self._routers = [SimulatedRouter() for _ in range(shape.routers)]
        self._store = SimulatedStore(costs.store_s)
        self._episodes = random.Random(f'episodes {settings.seed}')
        # server by server, so that the robots of each use all routers
        places = sorted(range(fleet.robots), key=lambda number: number % shape.servers)
        for place, number in enumerate(places):
            self._robots[number].router = place % shape.routers
            self._schedule(self._episodes.random() * costs.episode_s, self._on_episode)

    def lose(self, loss: Lost | None) -> None:
        """Plan the loss of the first router or of the store."""
        if loss is Lost.ROUTER:
            self._schedule(LOSS_AT * self._seconds, self._on_router_loss, 0)
        elif loss is Lost.STORE:
            self._schedule(LOSS_AT * self._seconds, self._store.leave)
            self._schedule(STORE_BACK_AT * self._seconds, self._on_store_back)

    def site_result(self) -> SiteResult:
        """Return the counts of the run."""
        robots = [robot.router for robot in self._robots]
        routers = tuple(
            RouterShare(robots.count(number), router.busy_s / self._seconds)
            for number, router in enumerate(self._routers)
        )
        return SiteResult(self.result(), routers, self._store.result())

    # routers

    def _to_server(self, request: SimulatedRequest) -> None:
        self._schedule(self._now_s + self._leg_s, self._on_router, request, self._on_forwarded)

    def _to_robot(self, request: SimulatedRequest) -> None:
        self._schedule(self._now_s + self._leg_s, self._on_router, request, self._on_relayed)

    def _on_router(
        self, request: SimulatedRequest, then: Callable[[SimulatedRequest], None]
    ) -> None:
        """Queue a request or a reply; what arrives first leaves first."""
        router = self._routers[request.router]
        begin_s = max(self._now_s, router.free_at_s)
        router.free_at_s = begin_s + self._pass_s
        if router.is_alive:
            router.busy_s += self._clip_to_end_s(router.free_at_s) - self._clip_to_end_s(begin_s)
        self._schedule(router.free_at_s, then, request)

    def _on_forwarded(self, request: SimulatedRequest) -> None:
        if self._is_routed(request):
            request.server = request.robot.server
            self._schedule(self._now_s + self._leg_s, self._on_arrival, request)

    def _on_relayed(self, request: SimulatedRequest) -> None:
        if self._is_routed(request):
            self._schedule(self._now_s + self._leg_s, self._on_reply, request)

    def _is_routed(self, request: SimulatedRequest) -> bool:
        """Return whether its router is alive; else the request is lost."""
        if self._routers[request.router].is_alive:
            return True
        request.is_ended = True
        self._lost[ROUTER_LOST] += 1
        return False

    def _on_router_loss(self, number: int) -> None:
        router = self._routers[number]
        router.is_alive = False
        # what it has not done by now
        router.busy_s -= max(0.0, self._clip_to_end_s(router.free_at_s) - self._now_s)
        router.free_at_s = self._now_s
        failover_s = router_failover_s(self._fleet)
        self._schedule(self._now_s + failover_s, self._on_router_failover, number)

    def _on_router_failover(self, number: int) -> None:
        """Spread the robots of a lost router over the others, and repeat their requests."""
        others = [each for each, router in enumerate(self._routers) if router.is_alive]
        if not others:
            return
        for place, robot in enumerate(self._robots_of(number)):
            robot.router = others[place % len(others)]
            if robot.pending:
                self._send_request(robot, robot.pending.captured_s)

    def _robots_of(self, number: int) -> list[SimulatedRobot]:
        return [robot for robot in self._robots if robot.router == number]

    # the store

    def _on_episode(self) -> None:
        """Begin an episode of a robot, and plan the next one."""
        if self._now_s >= self._seconds:
            return
        self._store.place()
        self._write()
        jitter = self._fleet.jitter * (2 * self._episodes.random() - 1)
        self._schedule(self._now_s + self._costs.episode_s * (1 + jitter), self._on_episode)

    def _write(self) -> None:
        turn = self._store.begin()
        if turn is not None:
            self._schedule(self._now_s + self._store.write_s, self._on_written, turn)

    def _on_written(self, turn: int) -> None:
        self._store.end(turn, self._now_s)
        self._write()

    def _on_store_back(self) -> None:
        self._store.come_back(self._now_s)
        self._write()
