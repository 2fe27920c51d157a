# SPDX-License-Identifier: Apache-2.0
"""The formula: the rule of admission turned around, and each number the largest that fits."""

from __future__ import annotations

import math

from hypothesis import assume, given
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand

from lerobot_serve.server.sessions.admission import Demand, max_robots, MAX_UTILIZATION
from lerobot_serve.tools.plan.demand import apply_formula, ServiceTime

# milliseconds, so that shares lie on both sides of every bound
TIMES_S = st.integers(1, 500).map(lambda ms: ms / 1e3)


def test_three_hundred_robots_with_pi0_take_sixty_servers_and_a_spare():
    found = apply_formula(fleet_demand(300), ServiceTime(0.15), 0.8)
    assert (found.by_load, found.per_server) == (5, 5)
    assert found.work == pytest.approx(45)
    assert (found.minimum_servers, found.without_spare, found.servers) == (50, 60, 61)


def test_forty_robots_with_act_take_one_server():
    found = apply_formula(fleet_demand(40), ServiceTime(0.02), 0.8)
    assert (found.by_load, found.without_spare, found.servers) == (40, 1, 2)


def test_a_short_chunk_leaves_a_server_fewer_robots():
    fleet = fleet_demand(100, rate_hz=2, chunk_s=1.0, network_s=0.1)
    found = apply_formula(fleet, ServiceTime(0.1), 0.8)
    assert (found.by_load, found.by_delay, found.per_server) == (4, 4, 4)
    short = apply_formula(
        fleet_demand(100, rate_hz=2, chunk_s=0.8, network_s=0.1), ServiceTime(0.1), 0.8
    )
    assert (short.by_load, short.by_delay, short.per_server) == (4, 3, 3)


def test_one_robot_may_be_too_much_for_any_server():
    found = apply_formula(fleet_demand(3, rate_hz=5), ServiceTime(0.3), 0.8)
    assert (found.by_load, found.minimum_servers) == (0, None)
    assert (found.per_server, found.servers) == (1, 4)


def test_batches_that_never_fill_promise_nothing():
    """64 together would be cheap, but a server that gets 64 robots could not keep up."""
    found = apply_formula(fleet_demand(100, rate_hz=4), ServiceTime(0.1, 0.02, 64), 0.8)
    # 0.8 / 4 s is room for one and five more
    assert (found.by_load, found.per_server) == (6, 6)
    assert found.request_time_s == pytest.approx(0.2 / 6)


@given(st.integers(1, 2000), TIMES_S, st.sampled_from([0.5, 1.0, 2.0, 5.0]), TIMES_S)
def test_a_server_that_admits_by_measurement_admits_as_many(robots, first_s, rate_hz, network_s):
    fleet = fleet_demand(robots, rate_hz=rate_hz, network_s=network_s)
    demand = Demand(rate_hz, fleet.playable_s, network_s)
    shares = MAX_UTILIZATION / (rate_hz * first_s), (fleet.playable_s / 2 - network_s) / first_s
    # what rounding decides may go either way
    assume(all(abs(share - round(share)) > 1e-6 for share in shares))
    found = apply_formula(fleet, ServiceTime(first_s), MAX_UTILIZATION)
    assert found.per_server == max_robots(first_s, demand)
    assert found.without_spare == math.ceil(robots / found.per_server)


@given(TIMES_S, st.floats(0, 1), st.integers(1, 64), st.integers(1, 5000))
def test_a_server_can_answer_so_many_in_its_time_and_not_one_more(first_s, more, batch, budget_ms):
    service, budget_s = ServiceTime(first_s, more * first_s, batch), budget_ms / 1e3
    robots = service.robots_within(budget_s)
    assert robots * service.request_time_s(robots) <= budget_s + 1e-6 or robots == 0
    assert (robots + 1) * service.request_time_s(robots + 1) > budget_s - 1e-6


@pytest.mark.parametrize(
    ('service', 'budget_s', 'robots'),
    [
        (ServiceTime(0.15, 0.01, 16), 0.5, 22),
        (ServiceTime(0.15, 0.01, 16), 0.45, 17),
        (ServiceTime(0.4, 0.02, 8), 0.7, 8),
        (ServiceTime(0.3, 0.01, 8), 0.7, 12),
        (ServiceTime(0.3, 0.0, 8), 0.7, 16),
        (ServiceTime(0.1), 0.8, 8),
        (ServiceTime(0.1), 0.09, 0),
    ],
)
def test_of_robots_that_send_at_once_the_last_batch_is_not_full(service, budget_s, robots):
    fleet = fleet_demand(100, rate_hz=0.01, chunk_s=2 * budget_s, network_s=0.0)
    assert apply_formula(fleet, service, 0.8).by_delay == robots


def at_once_s(service: ServiceTime, robots: int) -> float:
    """Return when the last of so many is answered, batch by batch."""
    took_s = 0.0
    while robots > 0:
        together = min(robots, service.batch)
        took_s += service.batch_time_s(together)
        robots -= together
    return took_s


@given(TIMES_S, st.floats(0, 1), st.integers(1, 64), st.integers(1, 5000))
def test_so_many_may_send_at_once_and_not_one_more(first_s, more, batch, budget_ms):
    service, budget_s = ServiceTime(first_s, more * first_s, batch), budget_ms / 1e3
    robots = service.robots_at_once(budget_s)
    assert at_once_s(service, robots) <= budget_s + 1e-6
    assert at_once_s(service, robots + 1) > budget_s - 1e-6


@given(TIMES_S, st.floats(0.01, 1), st.integers(2, 64), st.integers(1, 5000))
def test_a_server_that_measures_full_batches_admits_as_many(first_s, more, batch, budget_ms):
    service, budget_s = ServiceTime(first_s, more * first_s, batch), budget_ms / 1e3
    planned = service.robots_at_once(budget_s)
    # what rounding decides may go either way
    times_s = at_once_s(service, planned), at_once_s(service, planned + 1)
    assume(all(abs(took_s - budget_s) > 1e-6 for took_s in times_s))
    # requests so seldom that the load decides nothing
    demand = Demand(1e-6, 2 * budget_s, 0.0)
    measured_s = service.request_time_s(batch)
    assert max_robots(measured_s, demand, batch, first_s) == max(1, planned)
