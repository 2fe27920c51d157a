# SPDX-License-Identifier: Apache-2.0
"""A site in virtual time: what holds of every run, and what is known of queues."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand, fleets, site_costs

from lerobot_serve.tools.plan.demand import ServiceTime
from lerobot_serve.tools.plan.search import SimulationSettings
from lerobot_serve.tools.plan.simulation import simulate_fleet
from lerobot_serve.tools.plan.sites_costs import SiteShape
from lerobot_serve.tools.plan.sites_simulation import Lost, simulate_site, SiteResult

FLEETS = fleets(15)
COSTS = st.builds(
    lambda router_s, store_s, episode_s: site_costs(
        router_s=router_s, store_s=store_s, episode_s=episode_s
    ),
    st.floats(1e-4, 0.3),
    st.floats(1e-4, 0.3),
    st.floats(0.5, 20),
)
SERVICES = st.builds(ServiceTime, st.floats(0.02, 1.0), st.just(0.01), st.integers(1, 4))
SHAPES = st.builds(SiteShape, st.integers(1, 3), st.integers(1, 3))
LOSSES = st.sampled_from([None, *Lost])


def run(fleet, *, shape=(2, 4), first_s=0.1, seconds=8.0, seed=1, loss=None, **costs):
    trial = SimulationSettings(seconds, seed)
    return simulate_site(
        fleet, ServiceTime(first_s), site_costs(**costs), SiteShape(*shape), trial, loss
    )


@settings(max_examples=150)
@given(FLEETS, SERVICES, COSTS, SHAPES, LOSSES, st.integers(0, 9))
def test_every_request_and_every_placement_ends_once(fleet, service, costs, shape, loss, seed):
    found = simulate_site(fleet, service, costs, shape, SimulationSettings(6, seed), loss)
    sums, store = found.requests, found.store
    assert sums.requests == sums.answered + sums.superseded + sums.lost.total()
    allowed = {Lost.ROUTER: {'router_lost'}, Lost.SERVER: {'server_lost'}}.get(loss, set())
    assert set(sums.lost) <= {'late_chunk', *allowed}
    assert sum(share.robots for share in found.routers) == fleet.robots
    assert all(-1e-9 <= share.busy_share <= 1 + 1e-9 for share in found.routers)
    assert store.written == store.placements
    assert store.busy_s == pytest.approx(store.written * costs.store_s)
    assert (store.caught_up_s is None) == (loss is not Lost.STORE)


@settings(max_examples=25)
@given(FLEETS, SERVICES, COSTS, SHAPES, LOSSES, st.integers(0, 9))
def test_the_same_seed_gives_the_same_run(fleet, service, costs, shape, loss, seed):
    first, second = (
        simulate_site(fleet, service, costs, shape, SimulationSettings(5, seed), loss)
        for _ in range(2)
    )
    assert first == second


@settings(max_examples=25)
@given(FLEETS, SERVICES, COSTS, SHAPES, st.integers(0, 9))
def test_no_request_waits_for_the_store(fleet, service, costs, shape, seed):
    trial = SimulationSettings(5, seed)
    normal, away = (
        simulate_site(fleet, service, costs, shape, trial, loss) for loss in (None, Lost.STORE)
    )
    assert (normal.requests, normal.routers) == (away.requests, away.routers)
    assert normal.store.placements == away.store.placements
    assert normal.store.most_waiting <= away.store.most_waiting


def test_another_seed_gives_another_run():
    assert len({run(fleet_demand(9), seed=seed).requests.latencies_s for seed in range(5)}) == 5


@pytest.mark.parametrize('routers', [1, 2, 4])
def test_a_router_is_busy_as_its_rate_and_service_time_say(routers):
    found = run(fleet_demand(200), shape=(routers, 40), seconds=30, router_s=0.002)
    for router in found.routers:
        assert router.robots == 200 // routers
        assert router.busy_share == pytest.approx(200 / routers * 0.002, rel=0.03)
    assert found.requests.busy_share == pytest.approx(200 * 0.1 / 40, rel=0.03)


def test_the_store_is_busy_as_its_rate_and_service_time_say():
    found = run(fleet_demand(400), shape=(1, 80), seconds=60, episode_s=5.0, store_s=0.01)
    assert found.store.placements == pytest.approx(400 / 5 * 60, rel=0.05)
    assert found.store.busy_s / 60 == pytest.approx(400 / 5 * 0.01, rel=0.05)


def test_a_request_passes_router_and_network_on_both_ways():
    fleet = fleet_demand(1, jitter=0.0, network_s=0.1)
    found = run(fleet, shape=(1, 1), router_s=0.02)
    assert found.requests.latencies_s == pytest.approx([0.1 + 0.02 + 0.1] * 8)


@settings(max_examples=20)
@given(FLEETS, SERVICES, st.integers(1, 3), st.integers(0, 9))
def test_a_router_that_takes_no_time_is_none(fleet, service, servers, seed):
    found = simulate_site(
        fleet, service, site_costs(router_s=1e-12), SiteShape(2, servers),
        SimulationSettings(5, seed),
    )  # fmt: skip
    alone = simulate_fleet(fleet, service, servers, seconds=5, seed=seed)
    assert found.requests.requests == pytest.approx(alone.requests, abs=1)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.floats(0.001, 0.1), st.integers(0, 9))
def test_more_routers_are_never_worse(robots, router_s, seed):
    """Up to the noise of one request: with other waits the servers meet other requests."""
    fleet = fleet_demand(robots, jitter=0.0)
    runs = [
        run(fleet, shape=(routers, robots), router_s=router_s, seed=seed, seconds=6)
        for routers in (1, 2, 4, 8)
    ]
    for fewer, more in pairwise(runs):
        assert more.router_share <= fewer.router_share + 1e-9
        assert more.requests.stalled_s <= fewer.requests.stalled_s + 1e-9
        assert more.requests.blocked_share <= fewer.requests.blocked_share + 1e-9
        assert middle_s(more) <= middle_s(fewer) + router_s


def middle_s(found: SiteResult) -> float:
    latencies_s = found.requests.latencies_s
    return sum(latencies_s) / len(latencies_s)


# losses


def test_robots_of_a_lost_router_go_to_all_others_evenly():
    found = run(fleet_demand(30), shape=(4, 10), loss=Lost.ROUTER, seconds=20)
    # 8 of them, 7 or 8 were at each of the others
    assert [share.robots for share in found.routers] == [0, 11, 10, 9]
    # within the second in which they do not know
    assert found.requests.lost['router_lost'] == pytest.approx(8, abs=2)
    assert found.requests.stalled == 0


def test_robots_of_the_only_router_stall_when_it_is_lost():
    found = run(fleet_demand(5), shape=(1, 5), loss=Lost.ROUTER, seconds=20)
    assert found.requests.stalled == 5
    assert found.requests.stalled_s == pytest.approx(5 * 8, abs=5)


def test_a_lost_server_is_replaced_through_the_same_router():
    found = run(fleet_demand(30), shape=(2, 10), loss=Lost.SERVER, seconds=20)
    assert found.requests.servers[0].robots == 0
    assert [share.robots for share in found.routers] == [15, 15]
    assert not found.requests.stalled


def test_placements_wait_for_the_store_and_are_written_when_it_is_back():
    found = run(
        fleet_demand(100), shape=(2, 20), loss=Lost.STORE, seconds=20, episode_s=5.0, store_s=0.01
    )
    # 20 a second for 5 s
    assert found.store.most_waiting == pytest.approx(100, rel=0.2)
    # at 100 a second, while others arrive
    assert found.store.caught_up_s == pytest.approx(100 * 0.01 / (1 - 0.2), rel=0.25)
