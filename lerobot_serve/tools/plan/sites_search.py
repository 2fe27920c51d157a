# SPDX-License-Identifier: Apache-2.0
"""
Find how many routers and policy servers a site needs. Pure.

The number of servers is first that of a fleet without routers, which is faster to simulate, then
the smallest from there on that meets the goals with routers: in normal operation, and after the
loss of a router and of a server. The loss of the store changes no request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime, SPARE
from lerobot_serve.tools.plan.report import no_result_reason
from lerobot_serve.tools.plan.search import (
    find_server_count,
    normal_misses,
    SimulationSettings,
    smallest_count,
    stall_text,
)
from lerobot_serve.tools.plan.sites_costs import CORE_SHARE, site_sizes, SiteCosts, SiteShape
from lerobot_serve.tools.plan.sites_simulation import Lost, simulate_site, SiteResult


@dataclass(frozen=True, slots=True)
class SiteModel:
    """What a site is made of, but the number of its robots, routers and servers."""

    fleet: FleetDemand
    service: ServiceTime
    costs: SiteCosts
    trial: SimulationSettings

    def with_robots(self, robots: int) -> SiteModel:
        """Return the same site with another number of robots."""
        return replace(self, fleet=replace(self.fleet, robots=robots))

    def largest(self, sites: int) -> SiteModel:
        """Return the largest of so many sites over which the robots are spread."""
        return self.with_robots(site_sizes(self.fleet.robots, sites)[0][1])

    def run(self, shape: SiteShape, loss: Lost | None = None) -> SiteResult:
        """Simulate the site."""
        return simulate_site(self.fleet, self.service, self.costs, shape, self.trial, loss)


@dataclass(frozen=True, slots=True)
class SitePlan:
    """
    The plan of `count` sites of one size. `shape` has the planned routers and servers, or the
    closest ones; `losses` the runs with a loss; `misses` the goals that they miss, as text.
    """

    count: int
    model: SiteModel
    shape: SiteShape
    normal: SiteResult
    losses: Mapping[Lost, SiteResult]
    misses: tuple[str, ...]

    @property
    def robots(self) -> int:
        """Number of robots of each site."""
        return self.model.fleet.robots

    @property
    def router_memory_mb(self) -> float:
        """Memory of each router."""
        return self.model.costs.memory_mb(self.robots, self.shape.routers)

    @property
    def store_share(self) -> float:
        """Busy share of the store of a site."""
        return self.model.costs.store_share(self.robots, self.shape.routers)


def plan_site(count: int, model: SiteModel, routers: int, servers_limit: int) -> SitePlan:
    """Plan `count` sites with so many routers, and with up to `servers_limit` servers each."""
    fleet_only = find_server_count(model.fleet, model.service, model.trial, servers_limit)
    least = fleet_only.servers or fleet_only.without_spare or fleet_only.limit
    fixed = shape_misses(model, routers)
    if fleet_only.servers is None:
        fixed = (no_result_reason(fleet_only), *fixed)
    runs = SiteRuns(model, routers)
    # where these miss a goal, more servers do not help
    servers = None if fixed else smallest_count(runs.holds, least, servers_limit)
    shown = servers or (least if fixed else servers_limit)
    return SitePlan(
        count,
        model,
        SiteShape(routers, shown),
        runs.result(shown),
        {loss: runs.result(shown, loss) for loss in Lost},
        fixed or (() if servers else tuple(runs.misses(shown))),
    )


class SiteRuns:
    """Run each simulation of a site with a number of routers once."""

    def __init__(self, model: SiteModel, routers: int) -> None:
        self._model, self._routers = model, routers
        self.result = cache(self._run)

    def _run(self, servers: int, loss: Lost | None = None) -> SiteResult:
        return self._model.run(SiteShape(self._routers, servers), loss)

    def holds(self, servers: int) -> bool:
        """Return whether so many servers meet the goals; simulates no more than it needs."""
        return next(self.misses(servers), None) is None

    def misses(self, servers: int) -> Iterator[str]:
        """Yield the missed goals, those first that need most."""
        for loss in (Lost.ROUTER, Lost.SERVER):
            result = self.result(servers, loss).requests
            if result.stalled:
                yield f'after the loss of a {loss.value}, {stall_text(result)}'
        yield from normal_misses(self.result(servers).requests, self._model.fleet)


def shape_misses(model: SiteModel, routers: int) -> tuple[str, ...]:
    """Return the goals that this number of routers misses whatever the servers are."""
    costs, fleet = model.costs, model.fleet
    found = []
    left = routers - SPARE
    if not left:
        found.append('after the loss of a router, none is left')
    elif fleet.robots > left * costs.router_robots(fleet, CORE_SHARE):
        share = fleet.robots * fleet.rate_hz * costs.router_s / left
        found.append(
            f'after the loss of a router, the others are busy for {share:.0%}, at most '
            f'{CORE_SHARE:.0%} is planned'
        )
    store_share = costs.store_share(fleet.robots, routers)
    if store_share > CORE_SHARE:
        found.append(f'the store needs {store_share:.0%} of a core, at most {CORE_SHARE:.0%}')
    return tuple(found)
