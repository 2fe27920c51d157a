# SPDX-License-Identifier: Apache-2.0
"""Plan all sites of a fleet: each size of a site once, then the sums. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.tools.plan.sites.costs import routers_needed, site_sizes
from lerobot_serve.tools.plan.sites.growth import grow, Growth
from lerobot_serve.tools.plan.sites.search import plan_site, SiteModel, SitePlan


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
