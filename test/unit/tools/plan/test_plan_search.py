# SPDX-License-Identifier: Apache-2.0
"""The smallest number of servers that holds every goal, and why no smaller one does."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest
from support.tools.plan_rig import fleet_demand

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
