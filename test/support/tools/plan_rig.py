# SPDX-License-Identifier: Apache-2.0
"""A fleet as tests of planning want it: chunks of 3 s, asked for once a second; site costs."""

from __future__ import annotations

from hypothesis import strategies as st

from lerobot_serve.tools.plan.demand import FleetDemand
from lerobot_serve.tools.plan.sites_costs import SiteCosts

USUAL = {
    'rate_hz': 1.0,
    'network_s': 0.01,
    'chunk_s': 3.0,
    'max_age_s': 3.0,
    'failover_s': 1.0,
    'request_timeout_s': 5.0,
    'jitter': 0.1,
}


def fleet_demand(robots: int, **changes: float) -> FleetDemand:
    return FleetDemand(robots=robots, **{**USUAL, **changes})


def site_costs(**changes: float) -> SiteCosts:
    """Return costs that are easy to calculate with: 1 ms of a router, 2 ms of the store."""
    usual = {'router_s': 0.001, 'store_s': 0.002, 'store_idle_share': 0.01, 'episode_s': 10.0}
    memory = {'router_mb': 100.0, 'router_mb_per_robot': 0.25}
    return SiteCosts(**{**usual, **memory, **changes})


def fleets(robots: int) -> st.SearchStrategy[FleetDemand]:
    """Return fleets of up to so many robots."""
    return st.builds(
        fleet_demand,
        st.integers(1, robots),
        rate_hz=st.floats(0.2, 5.0),
        network_s=st.sampled_from([0.0, 0.01, 0.4]),
        chunk_s=st.floats(0.1, 4.0),
        failover_s=st.sampled_from([0.0, 1.0, 6.0]),
        request_timeout_s=st.sampled_from([0.0, 0.3, 5.0]),
        jitter=st.sampled_from([0.0, 0.1, 1.0]),
    )
