# SPDX-License-Identifier: Apache-2.0
"""The formula turned around, and the smallest number of servers that holds every goal."""

from __future__ import annotations

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand

from lerobot_serve.server.sessions.session_validation import Demand, max_robots, MAX_UTILIZATION
from lerobot_serve.tools.plan.demand import apply_formula, ServiceTime
from lerobot_serve.tools.plan.report import no_result_reason
from lerobot_serve.tools.plan.search import (
    BLOCKED_SHARE_LIMIT,
    find_server_count,
    SimulationSettings,
    smallest_count,
)

TRIAL = SimulationSettings(30.0, 1)


@given(st.integers(1, 300), st.integers(0, 300), st.integers(1, 600))
def test_the_smallest_is_found(low, more, wanted):
    tried: list[int] = []

    def holds(number: int) -> bool:
        tried.append(number)
        return number >= wanted

    high = low + more
    assert smallest_count(holds, low, high) == (max(low, wanted) if wanted <= high else None)
    assert all(low <= number <= high for number in tried)
    assert len(tried) <= 20


def test_a_server_of_pi0_takes_six_robots_when_nothing_is_kept_in_reserve():
    planned = find_server_count(fleet_demand(30), ServiceTime(0.15), TRIAL, 31)
    assert (planned.without_spare, planned.servers, planned.reason) == (5, 6, '')
    judged = {point.servers: point.holds for point in planned.points}
    assert judged[5] is False
    assert judged[6] is judged[7] is True
    (five,) = [point for point in planned.points if point.servers == 5]
    assert not five.normal_misses
    assert 'after the loss of a server, overload' in five.loss_misses[0]
    assert planned.shown.servers == 6


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(20, 400).map(lambda ms: ms / 1e3),
    st.sampled_from([1, 3]),
)
def test_the_formula_knows_below_which_number_it_cannot_be(robots, rate_hz, first_s, batch):
    fleet = fleet_demand(robots, rate_hz=rate_hz, chunk_s=5.0, max_age_s=5.0)
    service = ServiceTime(first_s, first_s / 2, batch)
    planned = find_server_count(fleet, service, SimulationSettings(20.0, 1), robots + 1)
    # what is asked for may be a little more than there is, see BLOCKED_SHARE_LIMIT
    slower = fleet_demand(
        robots, rate_hz=rate_hz / (1 + BLOCKED_SHARE_LIMIT), chunk_s=5.0, max_age_s=5.0
    )
    least = apply_formula(slower, service, 1.0).minimum_servers
    if planned.without_spare:
        assert planned.without_spare >= least
    if planned.servers:
        # and the one that dies must be one more
        assert planned.servers >= least + 1


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 12),
    st.sampled_from([0.5, 1.0, 2.0]),
    st.integers(20, 200).map(lambda ms: ms / 1e3),
)
def test_what_the_formula_says_is_enough(robots, rate_hz, first_s):
    fleet = fleet_demand(robots, rate_hz=rate_hz, chunk_s=5.0, max_age_s=5.0)
    needed = apply_formula(fleet, ServiceTime(first_s), 0.8).servers
    planned = find_server_count(
        fleet, ServiceTime(first_s), SimulationSettings(20.0, 1), needed, also=(needed,)
    )
    assert planned.servers is not None, [point.normal_misses for point in planned.points]


@pytest.mark.parametrize(
    ('changes', 'first_s', 'words'),
    [
        ({'chunk_s': 0.9}, 0.1, 'plays for 0.9 s, but the request period is 1 s'),
        ({'rate_hz': 4}, 0.3, 'one robot alone needs 120% of a server'),
        (
            {'chunk_s': 1.3, 'network_s': 0.3},
            0.1,
            'alone take 0.4 s, but the buffer at a request is 0.3',
        ),
        (
            {'failover_s': 5.0},
            0.1,
            'wait 5.11 s for a reply, 5 s of it until the loss is detected',
        ),
    ],
    ids=['chunk', 'robot', 'network', 'failover'],
)
def test_where_no_number_can_be_enough_it_is_said(changes, first_s, words):
    planned = find_server_count(fleet_demand(4, **changes), ServiceTime(first_s), TRIAL, 5)
    assert planned.servers is None
    assert words in planned.reason
    assert words in no_result_reason(planned)
    assert planned.points


def test_a_death_noticed_too_late_leaves_the_number_that_serves_all_others():
    planned = find_server_count(fleet_demand(30, failover_s=5.0), ServiceTime(0.15), TRIAL, 31)
    assert (planned.without_spare, planned.servers) == (5, None)
    words = '5 servers are enough without a spare, but after the loss of a server'
    assert no_result_reason(planned).startswith(words)


@pytest.mark.parametrize(
    ('limit', 'words'),
    [
        (3, 'not even 3: overload: robots wait before they can send'),
        (5, 'not even 5: after the loss of a server, overload'),
    ],
)
def test_a_limit_that_is_too_low_is_named(limit, words):
    planned = find_server_count(fleet_demand(30), ServiceTime(0.15), TRIAL, limit)
    assert planned.servers is None
    assert no_result_reason(planned).startswith(words)
    assert max(point.servers for point in planned.points) == limit


@pytest.mark.slow
def test_what_holds_by_luck_does_not_count():
    """12 servers happen to hold, 13 do not: who is with the one that dies decides."""
    planned = find_server_count(
        fleet_demand(300), ServiceTime(0.15, 0.02, 8, 0.005), SimulationSettings(60.0, 1), 301
    )
    judged = {point.servers: point.holds for point in planned.points}
    assert judged[12]
    assert not judged[13]
    assert planned.servers > 13
    assert all(judged[planned.servers + more] for more in (0, 1, 2))


def test_one_server_has_no_spare():
    planned = find_server_count(fleet_demand(1), ServiceTime(0.1), TRIAL, 1)
    (only,) = planned.points
    assert not only.normal_misses
    assert 'after the loss of a server, none is left' in only.loss_misses
    assert planned.servers is None


def test_batches_make_fewer_servers_enough():
    alone = find_server_count(fleet_demand(40), ServiceTime(0.15), TRIAL, 41).servers
    together = find_server_count(fleet_demand(40), ServiceTime(0.15, 0.01, 8), TRIAL, 41).servers
    assert together < alone / 2


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
