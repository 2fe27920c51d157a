# SPDX-License-Identifier: Apache-2.0
"""How robots are spread over sites, and what their routers and their store need."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand, site_costs

from lerobot_serve.parameters import ParameterError
from lerobot_serve.tools.plan.sites_costs import (
    CORE_SHARE,
    router_failover_s,
    routers_needed,
    site_sizes,
)


@given(st.integers(1, 10_000), st.integers(1, 1000))
def test_every_robot_has_one_site(robots, sites):
    if sites > robots:
        with pytest.raises(ParameterError, match=r'--sites must be in \[1, --robots'):
            site_sizes(robots, sites)
        return
    sizes = site_sizes(robots, sites)
    assert sum(count * size for count, size in sizes) == robots
    assert sum(count for count, _ in sizes) == sites
    assert [size for _, size in sizes] in ([robots // sites + 1, robots // sites], [sizes[0][1]])
    assert all(count > 0 for count, _ in sizes)


@given(st.integers(1, 2000), st.floats(0.1, 20), st.floats(1e-5, 0.03))
def test_one_router_less_is_still_enough(robots, rate_hz, router_s):
    fleet, costs = fleet_demand(robots, rate_hz=rate_hz), site_costs(router_s=router_s)
    routers = routers_needed(fleet, costs)
    assert robots * rate_hz * router_s <= (routers - 1) * CORE_SHARE + 1e-6
    # and the spare is the only one too many
    each = costs.router_robots(fleet, CORE_SHARE)
    assert (routers - 2) * each < robots


def test_a_robot_that_is_too_much_for_a_router_is_refused():
    with pytest.raises(ParameterError, match='busy for 200% of its time, at most 80% is planned'):
        routers_needed(fleet_demand(3, rate_hz=2), site_costs(router_s=1.0))


def test_the_store_adds_up():
    costs = site_costs()
    # 20 placements of 2 ms per second, and 3 routers that poll
    assert costs.store_share(200, 3) == pytest.approx(0.07)
    robots = costs.store_robots(3)
    assert costs.store_share(robots, 3) <= 1 < costs.store_share(robots + 1, 3)
    assert costs.store_robots(200) == 0


@pytest.mark.parametrize(('routers', 'memory_mb'), [(1, 125.0), (2, 125.0), (3, 112.5)])
def test_a_router_has_room_for_the_robots_of_a_lost_one(routers, memory_mb):
    assert site_costs().memory_mb(100, routers) == memory_mb


@pytest.mark.parametrize(('chunk_s', 'expected_s'), [(3.0, 1.0), (9.0, 2.0), (0.5, 0.0)])
def test_a_robot_leaves_a_dead_router_by_half_of_its_buffer(chunk_s, expected_s):
    fleet = fleet_demand(1, chunk_s=chunk_s, max_age_s=9.0)
    assert router_failover_s(fleet) == expected_s
