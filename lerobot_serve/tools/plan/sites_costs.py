# SPDX-License-Identifier: Apache-2.0
"""What routers and the shared store cost, and how much of them a site needs. Pure."""

from __future__ import annotations

from dataclasses import dataclass
import math

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.plan.demand import FleetDemand, SPARE, whole_number

# largest busy share of a core for a router and for the store: above it waiting times rise steeply
CORE_SHARE = 0.8
# after this time an edge has noticed a dead router in any case (liveliness lease)
LEASE_S = 2.0


@dataclass(frozen=True, slots=True)
class SiteCosts:
    """
    Measured costs, of a core each.

    router_s             CPU time of a router for a request and its reply
    router_mb            memory of a router without robots
    router_mb_per_robot  memory of a router for each robot
    store_s              CPU time of the store for one placement
    store_idle_share     busy share of the store for each router that polls it
    episode_s            length of an episode; each begins with a placement
    """

    router_s: float
    router_mb: float
    router_mb_per_robot: float
    store_s: float
    store_idle_share: float
    episode_s: float

    def placements_hz(self, robots: int) -> float:
        """Return the placements per second of so many robots."""
        return robots / self.episode_s

    def store_share(self, robots: int, routers: int) -> float:
        """Return the busy share of a store; above 1 it falls behind."""
        return self.placements_hz(robots) * self.store_s + routers * self.store_idle_share

    def store_robots(self, routers: int) -> int:
        """Return the number of robots at which a store with so many routers is 100 % busy."""
        left = 1 - routers * self.store_idle_share
        return whole_number(left * self.episode_s / self.store_s)

    def router_robots(self, fleet: FleetDemand, share: float) -> int:
        """Return the number of robots at which a router has this busy share."""
        return whole_number(share * fleet.period_s / self.router_s)

    def memory_mb(self, robots: int, routers: int) -> float:
        """Return the memory of each router of a site, once one of them is lost."""
        most = math.ceil(robots / max(1, routers - SPARE))
        return self.router_mb + most * self.router_mb_per_robot


@dataclass(frozen=True, slots=True)
class SiteShape:
    """Number of routers and of policy servers of a site."""

    routers: int
    servers: int


def site_sizes(robots: int, sites: int) -> list[tuple[int, int]]:
    """
    Return how many sites have how many robots, the larger ones first. The first `robots % sites`
    sites have one robot more than the others. Raises ParameterError.
    """
    if sites > robots:
        raise ParameterError(f'--sites must be in [1, --robots ({robots})], got {sites}')
    each, more = divmod(robots, sites)
    return [(count, size) for count, size in ((more, each + 1), (sites - more, each)) if count]


def routers_needed(fleet: FleetDemand, costs: SiteCosts) -> int:
    """Return the number of routers of a site, one spare included. Raises ParameterError."""
    each = costs.router_robots(fleet, CORE_SHARE)
    if not each:
        raise ParameterError(
            f'one robot alone keeps a router busy for {fleet.rate_hz * costs.router_s:.0%} of its '
            f'time, at most {CORE_SHARE:.0%} is planned: lower --rate-hz or --router-ms'
        )
    return math.ceil(fleet.robots / each) + SPARE


def router_failover_s(fleet: FleetDemand) -> float:
    """Return after which time a robot leaves a dead router: half of its buffer, or the lease."""
    return min(LEASE_S, max(0.0, fleet.buffer_s) / 2)
