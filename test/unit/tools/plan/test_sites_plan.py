# SPDX-License-Identifier: Apache-2.0
"""The plan of sites: how many routers and servers, and what breaks first."""

from __future__ import annotations

from collections import Counter

import pytest
from support.tools.plan_rig import fleet_demand, site_costs

from lerobot_serve.tools.plan import sites_search
from lerobot_serve.tools.plan.demand import ServiceTime
from lerobot_serve.tools.plan.search import SimulationSettings
from lerobot_serve.tools.plan.sites_costs import SiteShape
from lerobot_serve.tools.plan.sites_plan import grow, plan_sites, SiteResource
from lerobot_serve.tools.plan.sites_search import SiteModel, SitePlan
from lerobot_serve.tools.plan.sites_simulation import Lost


def model(
    robots: int, *, first_s: float = 0.1, seconds: float = 10.0, rate_hz: float = 1.0,
    **costs: float,
) -> SiteModel:  # fmt: skip
    return SiteModel(
        fleet_demand(robots, rate_hz=rate_hz),
        ServiceTime(first_s),
        site_costs(**costs),
        SimulationSettings(seconds, 1),
    )


def planned(site: SiteModel, routers: int, servers: int) -> SitePlan:
    shape = SiteShape(routers, servers)
    return SitePlan(1, site, shape, site.run(shape), {}, ())


def test_sites_are_planned_once_for_each_size_and_added_up():
    found = plan_sites(model(61), 3, None, None)
    assert [(plan.count, plan.robots) for plan in found.plans] == [(1, 21), (2, 20)]
    assert found.is_enough
    assert found.sites == 3
    assert found.routers == 3 * 2
    assert found.servers == sum(plan.count * plan.shape.servers for plan in found.plans)
    assert found.store_share == pytest.approx(6.1 * 0.002 + 6 * 0.01)
    for plan in found.plans:
        # 9 robots keep a server busy 90 % of its time; one is spare
        assert 3 <= plan.shape.servers <= 4
        assert set(plan.losses) == set(Lost)


def test_ten_thousand_robots_at_twenty_sites_take_few_steps(monkeypatch):
    """Each run takes 4 s of virtual time."""
    runs: Counter[int] = Counter()
    simulate = sites_search.simulate_site

    def counted(fleet, *given):
        runs[fleet.robots] += 1
        return simulate(fleet, *given)

    monkeypatch.setattr(sites_search, 'simulate_site', counted)
    found = plan_sites(model(10_000, seconds=4.0), 20, None, None)
    assert (found.sites, found.plans[0].robots, len(found.plans)) == (20, 500, 1)
    assert runs.total() <= 40
    assert max(runs) <= 2 * 500
    assert found.growth.first is not None


def test_a_router_too_few_is_named_and_more_servers_are_not_tried():
    found = plan_sites(model(20), 1, 1, None)
    assert not found.is_enough
    assert found.plans[0].misses == ('after the loss of a router, none is left',)
    busy = plan_sites(model(20, router_s=0.05), 1, 2, None)
    assert busy.plans[0].misses == (
        'after the loss of a router, the others are busy for 100%, at most 80% is planned',
    )


def test_a_store_that_is_too_slow_is_named():
    found = plan_sites(model(20, store_s=0.5), 1, None, None)
    assert found.plans[0].misses == ('the store needs 102% of a core, at most 80%',)
    assert found.growth.first and found.growth.first.breaks is SiteResource.STORE
    assert found.growth.first.robots == 20


def test_a_reason_for_which_no_server_is_enough_is_that_of_a_fleet():
    found = plan_sites(model(5, first_s=1.5), 1, None, None)
    assert 'one robot alone needs 150% of a server' in found.plans[0].misses[0]


def test_too_few_servers_miss_a_goal():
    found = plan_sites(model(40), 1, None, 2)
    assert found.plans[0].misses
    assert found.plans[0].shape.servers == 2


@pytest.mark.parametrize(
    ('changes', 'shape', 'resource', 'robots'),
    [
        # 10 servers answer 100 requests a second
        ({}, (2, 10), SiteResource.SERVER, 100),
        # two routers pass 40
        ({'router_s': 0.05}, (2, 10), SiteResource.ROUTER, 40),
        # 1 - 2 x 1 % of a core are enough for 49 placements in 10 s
        ({'store_s': 0.2}, (2, 10), SiteResource.STORE, 49),
        # beside servers that are busy and keep up
        ({'store_s': 0.2085}, (2, 5), SiteResource.STORE, 47),
    ],
)
def test_what_is_full_first_breaks_first(changes, shape, resource, robots):
    growth = grow(planned(model(20, **changes), *shape), 1)
    assert growth.first and growth.first.breaks is resource
    assert growth.limits[0] == (resource, robots)
    assert growth.first.robots == pytest.approx(robots, rel=0.06, abs=1)
    factors = [point.factor for point in growth.points]
    assert factors == [1.0, 1.5, 2.0, 3.0, 6.0][: len(factors)]
    assert [bool(point.breaks) for point in growth.points] == [False] * (len(factors) - 1) + [True]


def test_the_buffer_breaks_where_nothing_is_full():
    """Replies take 2.1 s at a load of 1 %, and the buffer lasts 2 s."""
    site = SiteModel(
        fleet_demand(2, rate_hz=1.0, network_s=2.1, failover_s=0.0),
        ServiceTime(0.01),
        site_costs(),
        SimulationSettings(10.0, 1),
    )
    growth = grow(planned(site, 2, 4), 1)
    assert growth.first and growth.first.breaks is SiteResource.BUFFER
    assert growth.first.robots == 2


def test_one_store_for_all_sites_is_full_sooner():
    plan = planned(model(20), 2, 4)
    one, many = (dict(grow(plan, sites).limits) for sites in (1, 10))
    assert SiteResource.SHARED_STORE not in one
    # (1 - 20 x 1 %) / 2 ms are 400 placements a second, 4000 robots at 10 sites
    assert many[SiteResource.SHARED_STORE] == 400
    assert many[SiteResource.STORE] == one[SiteResource.STORE] == 4900
