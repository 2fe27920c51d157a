# SPDX-License-Identifier: Apache-2.0
"""
Plan all sites of a fleet, each size of a site once, then the sums; and find what breaks first
while a site grows and its routers and servers stay as planned. Pure.

A site breaks when it misses a goal in normal operation: robots have to wait or stall, replies come
later than the buffer at a request, or routers or the store fall behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, unique

from lerobot_serve.tools.plan.search import normal_misses
from lerobot_serve.tools.plan.sites_costs import routers_needed, site_sizes
from lerobot_serve.tools.plan.sites_search import plan_site, SiteModel, SitePlan
from lerobot_serve.tools.plan.sites_simulation import SiteResult

# steps of a site that grows; after the last one each is twice the step before
FACTORS = (1.0, 1.5, 2.0, 3.0)
# requests of one run
REQUESTS_LIMIT = 2_000_000
# where a goal is missed, a resource that is busy for this share of a run is the reason
SATURATED_SHARE = 0.9
# the number of robots is found up to this share of the planned ones
PRECISION = 0.01


@unique
class SiteResource(Enum):
    """What may break, as text."""

    ROUTER = 'the core of a router'
    STORE = 'the store of a site'
    SHARED_STORE = 'one store for all sites'
    SERVER = 'the policy servers'
    BUFFER = 'the buffer of a chunk'


@dataclass(frozen=True, slots=True)
class GrowthPoint:
    """A site with so many robots, the goals that it misses, and what breaks; None without."""

    robots: int
    factor: float
    result: SiteResult
    store_share: float
    misses: tuple[str, ...]
    breaks: SiteResource | None


@dataclass(frozen=True, slots=True)
class Growth:
    """
    `points` in steps, up to the first that breaks; `first` is the smallest size that breaks, None
    without one; `limits` has the robots of a site at which each resource is 100 % busy, as
    computed, the smallest first.
    """

    points: tuple[GrowthPoint, ...]
    first: GrowthPoint | None
    limits: tuple[tuple[SiteResource, int], ...]


def grow(plan: SitePlan, sites: int) -> Growth:
    """Let a site grow until it breaks. `sites` is the number of all sites."""
    points = []
    for factor in _factors():
        robots = round(factor * plan.robots)
        fleet = plan.model.fleet
        if robots * fleet.rate_hz * plan.model.trial.seconds > REQUESTS_LIMIT:
            break
        points.append(_point(plan, robots))
        if points[-1].breaks:
            break
    return Growth(tuple(points), _first_break(plan, points), limits(plan, sites))


def limits(plan: SitePlan, sites: int) -> tuple[tuple[SiteResource, int], ...]:
    """Return the robots of a site at which each resource is 100 % busy, the smallest first."""
    model, shape = plan.model, plan.shape
    fleet, costs = model.fleet, model.costs
    found = {
        SiteResource.ROUTER: shape.routers * costs.router_robots(fleet, 1.0),
        SiteResource.SERVER: shape.servers * model.service.robots_within(fleet.period_s),
        SiteResource.STORE: costs.store_robots(shape.routers),
    }
    if sites > 1:
        found[SiteResource.SHARED_STORE] = costs.store_robots(sites * shape.routers) // sites
    return tuple(sorted(found.items(), key=lambda item: item[1]))


def _factors() -> Iterator[float]:
    yield from FACTORS
    factor = FACTORS[-1]
    while True:
        factor *= 2
        yield factor


def _first_break(plan: SitePlan, points: list[GrowthPoint]) -> GrowthPoint | None:
    """Bisect the last step."""
    if not points or points[-1].breaks is None:
        return None
    first, good = points[-1], points[-2].robots if len(points) > 1 else points[-1].robots
    step = max(1, round(PRECISION * plan.robots))
    while first.robots - good > step:
        point = _point(plan, (first.robots + good) // 2)
        if point.breaks:
            first = point
        else:
            good = point.robots
    return first


def _point(plan: SitePlan, robots: int) -> GrowthPoint:
    model, routers = plan.model.with_robots(robots), plan.shape.routers
    result = plan.normal if robots == plan.robots else model.run(plan.shape)
    router_load = robots * model.fleet.rate_hz * model.costs.router_s / routers
    store_share = model.costs.store_share(robots, routers)
    misses = normal_misses(result.requests, model.fleet)
    is_only_store = not misses and router_load <= 1 < store_share
    # a short run does not show a slight overload of these
    if router_load > 1:
        misses += (f'each router needs {router_load:.0%} of a core',)
    if store_share > 1:
        misses += (f'the store needs {store_share:.0%} of a core',)
    breaks = _broken(result, router_load, is_only_store=is_only_store) if misses else None
    return GrowthPoint(robots, robots / plan.robots, result, store_share, misses, breaks)


def _broken(result: SiteResult, router_load: float, *, is_only_store: bool) -> SiteResource:
    """Return what a missed goal is due to, in the order of a request; else the buffer is short."""
    if is_only_store:
        return SiteResource.STORE
    if max(router_load, result.router_share) >= SATURATED_SHARE:
        return SiteResource.ROUTER
    return SiteResource.SERVER if result.server_share >= SATURATED_SHARE else SiteResource.BUFFER


@dataclass(frozen=True, slots=True)
class SitesPlan:
    """
    `plans` has one plan for each size of a site, the largest first, and `growth` lets that grow.
    Sites share nothing but the database of the store, where one is used for all.
    """

    model: SiteModel
    plans: tuple[SitePlan, ...]
    growth: Growth

    @property
    def is_enough(self) -> bool:
        """Whether each site meets all goals."""
        return not any(plan.misses for plan in self.plans)

    @property
    def sites(self) -> int:
        return sum(plan.count for plan in self.plans)

    @property
    def routers(self) -> int:
        return sum(plan.count * plan.shape.routers for plan in self.plans)

    @property
    def servers(self) -> int:
        return sum(plan.count * plan.shape.servers for plan in self.plans)

    @property
    def router_memory_mb(self) -> float:
        """Memory of all routers."""
        return sum(plan.count * plan.shape.routers * plan.router_memory_mb for plan in self.plans)

    @property
    def store_share(self) -> float:
        """Busy share of one store for all sites, in cores."""
        return self.model.costs.store_share(self.model.fleet.robots, self.routers)


def plan_sites(
    model: SiteModel, sites: int, routers: int | None, servers_limit: int | None
) -> SitesPlan:
    """
    Plan the robots of `model` at so many sites; by default with as many routers as a site needs,
    and up to one server more than it has robots. Raises ParameterError.
    """
    plans = []
    for count, robots in site_sizes(model.fleet.robots, sites):
        site = model.with_robots(robots)
        own_routers = routers or routers_needed(site.fleet, site.costs)
        plans.append(plan_site(count, site, own_routers, servers_limit or robots + 1))
    return SitesPlan(model, tuple(plans), grow(plans[0], sites))
