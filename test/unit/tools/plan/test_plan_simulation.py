# SPDX-License-Identifier: Apache-2.0
"""The simulation against what is known of queues, and what holds of every run."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand, fleets

from lerobot_serve.tools.plan.demand import ServiceTime, SimulationResult
from lerobot_serve.tools.plan.simulation import simulate_fleet

SERVICES = st.builds(
    lambda first_s, more, batch, window_s: ServiceTime(first_s, more * first_s, batch, window_s),
    st.floats(0.001, 2.0),
    st.floats(0, 1),
    st.integers(1, 8),
    st.sampled_from([0.0, 0.005, 0.5]),
)
FLEETS = fleets(20)


@settings(max_examples=100)
@given(FLEETS, SERVICES, st.integers(1, 4), st.none() | st.floats(0, 10), st.integers(0, 9))
def test_every_request_ends_once(fleet, service, servers, server_loss_at_s, seed):
    sums = simulate_fleet(
        fleet, service, servers, seconds=8, seed=seed, server_loss_at_s=server_loss_at_s
    )
    assert sums.requests == sums.answered + sums.superseded + sums.lost.total()
    assert set(sums.lost) <= {'server_lost', 'late_chunk'}
    assert sum(share.robots for share in sums.servers) == fleet.robots
    assert all(0 <= share.busy_share <= 1 + 1e-9 for share in sums.servers)
    assert sums.chunks <= sum(share.chunks for share in sums.servers)
    assert 0 <= sums.stalled_s <= fleet.robots * sums.seconds
    if server_loss_at_s is None:
        assert not sums.lost['server_lost']
        assert sums.chunks == sum(share.chunks for share in sums.servers)


@settings(max_examples=20)
@given(FLEETS, SERVICES, st.integers(1, 4), st.integers(0, 9))
def test_the_same_seed_gives_the_same_run(fleet, service, servers, seed):
    first, second = (
        simulate_fleet(fleet, service, servers, seconds=5, seed=seed, server_loss_at_s=2.5)
        for _ in range(2)
    )
    assert first == second


def test_another_seed_gives_another_run():
    runs = {
        simulate_fleet(fleet_demand(9), ServiceTime(0.1), 1, seconds=9, seed=s).latencies_s
        for s in range(5)
    }
    assert len(runs) == 5


@pytest.mark.parametrize('robots', [1, 4, 10])
def test_robots_evenly_apart_never_wait(robots):
    """D/D/1, up to a server that is busy all the time."""
    fleet = fleet_demand(robots, jitter=0.0, network_s=0.0)
    begin_s = [number / robots for number in range(robots)]
    sums = simulate_fleet(fleet, ServiceTime(1 / robots - 1e-6), 1, seconds=20, begin_s=begin_s)
    assert sums.answered == sums.requests == 20 * robots
    assert sums.latencies_s[-1] == pytest.approx(1 / robots, abs=1e-5)
    assert sums.busy_share == pytest.approx(1, abs=1e-4)


def test_robots_all_at_once_wait_one_for_the_other():
    fleet = fleet_demand(5, jitter=0.0)
    sums = simulate_fleet(fleet, ServiceTime(0.1), 1, seconds=8, begin_s=[0.0] * 5)
    expected = [fleet.network_s + 0.1 * place for place in range(1, 6) for _ in range(8)]
    assert sums.latencies_s == pytest.approx(expected)
    shown = [sums.latency_ms(percent) for percent in (0, 20, 21, 50, 99)]
    assert shown == pytest.approx([110, 110, 210, 310, 510])
    assert sums.busy_share == pytest.approx(0.5)


@pytest.mark.parametrize('load', [0.3, 0.7])
def test_many_robots_that_ask_at_random_wait_as_theory_has_it(load):
    """M/D/1: on average load / (2 (1 - load)) of a service time; robots wait a little less."""
    robots, service_s = 200, load / 200
    fleet = fleet_demand(robots, jitter=1.0, network_s=0.0)
    sums = simulate_fleet(fleet, ServiceTime(service_s), 1, seconds=100)
    waited_s = sum(sums.latencies_s) / sums.answered - service_s
    assert waited_s == pytest.approx(service_s * load / (2 * (1 - load)), rel=0.15)
    assert sums.busy_share == pytest.approx(load, rel=0.03)


@pytest.mark.parametrize(('batch', 'each_s'), [(1, 0.1), (4, 0.04)])
@pytest.mark.parametrize('request_timeout_s', [0.0, 100.0])
def test_a_server_that_has_too_much_to_do_answers_what_it_can(batch, each_s, request_timeout_s):
    fleet = fleet_demand(40, rate_hz=5, request_timeout_s=request_timeout_s)
    sums = simulate_fleet(fleet, ServiceTime(0.1, 0.02, batch), 1, seconds=40)
    # those who wait at the end are answered, too
    assert sums.chunks == pytest.approx(40 / each_s, abs=45)
    assert sums.busy_share == pytest.approx(1, abs=0.01)
    if request_timeout_s:
        assert not sums.superseded
        # 8 s asked of each second
        assert sums.blocked_share == pytest.approx(1 - 1 / each_s / 200, abs=0.02)
    else:
        # only the newest request of each is kept
        assert sums.superseded == pytest.approx(200 * 40 - 40 / each_s, rel=0.05)


def test_a_batch_waits_for_company_but_not_when_all_are_there():
    fleet = fleet_demand(2, network_s=0.0, jitter=0.0)
    service = ServiceTime(0.1, 0.0, 2, 0.05)
    alone = simulate_fleet(fleet, service, 1, seconds=1, begin_s=[0.0, 0.5])
    assert alone.latencies_s == pytest.approx([0.15, 0.15])
    joined = simulate_fleet(fleet, service, 1, seconds=1, begin_s=[0.0, 0.02])
    assert joined.latencies_s == pytest.approx([0.1, 0.12])
    single = simulate_fleet(fleet_demand(1, network_s=0.0), service, 1, seconds=1, begin_s=[0.0])
    assert single.latencies_s == pytest.approx([0.1])


def test_a_newer_request_keeps_the_place_of_the_older():
    """The second robot is served before the third, though its newest request came later."""
    fleet = fleet_demand(3, rate_hz=1, network_s=0.0, jitter=0.0, request_timeout_s=0.0)
    sums = simulate_fleet(fleet, ServiceTime(1.5), 1, seconds=1.3, begin_s=[0.0, 0.1, 0.2])
    # the first is served until 1.5; the turns at 1.0, 1.1 and 1.2 take the places of the first two
    # that wait, and the first robot's own becomes a third
    assert (sums.requests, sums.superseded) == (6, 2)
    assert sums.lost == {'late_chunk': 1}
    assert sums.latencies_s == pytest.approx([3.0 - 1.1, 4.5 - 1.2, 6.0 - 1.0])


def test_what_lasts_too_short_stalls():
    """A chunk of 0.6 s each second: the robot stands still for the rest of it."""
    fleet = fleet_demand(1, chunk_s=0.6, network_s=0.0, jitter=0.0)
    sums = simulate_fleet(fleet, ServiceTime(0.1), 1, seconds=10, begin_s=[0.0])
    # none of its rows is skipped, since the robot stands still while it waits
    assert sums.stalled == 1
    assert sums.stalled_s == pytest.approx(0.1 + 9 * 0.4 + 0.3)


def test_what_is_too_old_is_not_played():
    fleet = fleet_demand(1, max_age_s=0.6, network_s=0.0, jitter=0.0)
    sums = simulate_fleet(fleet, ServiceTime(0.1), 1, seconds=10, begin_s=[0.0])
    assert sums.stalled_s == pytest.approx(0.1 + 9 * 0.5 + 0.4)


def test_who_waits_too_long_asks_anew():
    fleet = fleet_demand(1, request_timeout_s=0.3, network_s=0.0, jitter=0.0)
    sums = simulate_fleet(fleet, ServiceTime(0.5), 1, seconds=0.8, begin_s=[0.0])
    # at 0, 0.3 and 0.6: the first is answered at 0.5, too late, and the third takes the place of
    # none: the second is being answered
    assert (sums.requests, sums.answered, sums.superseded) == (3, 1, 0)
    assert sums.lost == {'late_chunk': 2}


# a server dies


def dying(fleet, servers: int, **given: object) -> SimulationResult:
    return simulate_fleet(
        fleet, ServiceTime(0.1), servers, seconds=10, server_loss_at_s=5.0, **given
    )


def test_what_a_dead_server_owed_is_asked_again_elsewhere():
    fleet = fleet_demand(2, network_s=0.0, jitter=0.0, failover_s=1.0)
    sums = dying(fleet, 2, begin_s=[0.95, 0.5])
    # at 4.95 the first asks; that it was lost is noticed at 6.0, and then it takes 0.1 s
    assert sums.lost == {'server_lost': 1}
    assert sums.latencies_s[-1] == pytest.approx(1.15)
    assert [share.robots for share in sums.servers] == [0, 2]
    assert not sums.stalled


@pytest.mark.parametrize(('failover_s', 'stalled_s'), [(1.8, 0.0), (2.5, 0.5)])
def test_robots_stall_when_a_death_is_noticed_too_late(failover_s, stalled_s):
    # asks at 5.0, right after the death, with 2.0 s left to play
    fleet = fleet_demand(
        2, network_s=0.0, jitter=0.0, failover_s=failover_s, request_timeout_s=9.0
    )
    sums = dying(fleet, 2, begin_s=[0.0, 0.5])
    assert sums.stalled_s == pytest.approx(stalled_s + 0.1 * bool(stalled_s))


def test_robots_of_a_dead_server_are_spread_evenly():
    sums = dying(fleet_demand(13), 4)
    assert sorted(share.robots for share in sums.servers) == [0, 4, 4, 5]


def test_with_the_last_server_ends_everything():
    sums = dying(fleet_demand(3), 1)
    assert sums.stalled == 3
    assert sums.stalled_s == pytest.approx(3 * 2, abs=3)


# more servers


@settings(max_examples=30)
@given(
    st.integers(1, 10),
    st.floats(0.05, 1.0),
    st.floats(1.2, 4.0),
    st.sampled_from([0.0, 0.1]),
    st.integers(1, 4),
)
def test_more_servers_are_never_worse(robots, first_s, chunk_s, network_s, batch):
    """For robots that ask all at once and without chance, which is the worst moment."""
    fleet = fleet_demand(
        robots, chunk_s=chunk_s, network_s=network_s, jitter=0.0, request_timeout_s=99
    )
    service = ServiceTime(first_s, first_s / 2, batch)
    runs = [
        simulate_fleet(fleet, service, servers, seconds=8, begin_s=[0.0] * robots)
        for servers in range(1, robots + 2)
    ]
    for fewer, more in pairwise(runs):
        assert more.stalled_s <= fewer.stalled_s + 1e-6
        assert more.stalled <= fewer.stalled
        assert more.blocked_share <= fewer.blocked_share + 1e-6
