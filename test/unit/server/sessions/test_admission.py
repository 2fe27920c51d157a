# SPDX-License-Identifier: Apache-2.0
"""Admission: how many robots can be served, and how long one would wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.server.sessions.admission import (
    Demand,
    expected_rate_hz,
    max_robots,
    predicted_delay_s,
)

A_HZ = Demand(rate_hz=1.0, chunk_s=100.0, network_s=0.01)
seconds = st.floats(1e-4, 10.0)
rates = st.floats(1e-2, 100.0)
demands = st.builds(Demand, rates, st.floats(0.0, 100.0), st.floats(0.0, 1.0))


@pytest.mark.parametrize(('service_s', 'robots'), [(0.020, 40), (0.150, 5), (2.0, 1), (1e-3, 800)])
def test_the_server_is_busy_at_most_four_fifths_of_the_time(service_s, robots):
    assert max_robots(service_s, A_HZ) == robots


@pytest.mark.parametrize(
    ('chunk_s', 'network_s', 'robots'),
    [(2.0, 0.0, 10), (2.0, 0.1, 9), (1.0, 0.0, 5), (0.1, 0.0, 1), (0.0, 0.5, 1)],
)
def test_the_last_of_all_is_answered_within_half_a_chunk(chunk_s, network_s, robots):
    assert max_robots(0.1, Demand(0.01, chunk_s, network_s)) == robots


@given(seconds, seconds, demands)
def test_a_slower_policy_never_serves_more(one_s, other_s, demand):
    fast_s, slow_s = sorted((one_s, other_s))
    assert max_robots(fast_s, demand) >= max_robots(slow_s, demand) >= 1


@given(seconds, rates, rates, demands)
def test_robots_that_ask_more_often_are_never_more(service_s, one_hz, other_hz, demand):
    rarely, often = sorted((one_hz, other_hz))
    many = max_robots(service_s, replace(demand, rate_hz=rarely))
    assert many >= max_robots(service_s, replace(demand, rate_hz=often)) >= 1


@given(seconds, demands, st.floats(0.0, 10.0))
def test_a_longer_chunk_or_a_faster_network_is_never_worse(service_s, demand, more_s):
    base = max_robots(service_s, demand)
    assert max_robots(service_s, replace(demand, chunk_s=demand.chunk_s + more_s)) >= base
    assert max_robots(service_s, replace(demand, network_s=demand.network_s + more_s)) <= base


@pytest.mark.parametrize(
    ('single_s', 'robots'),
    [
        # 16 requests take 0.3 s together; the next batch has 0.2 s
        (0.15, 22),
        (0.21, 16),
        # longer than a batch, and not known
        (9.0, 16),
        (0.0, 26),
    ],
)
def test_a_batch_that_is_not_full_takes_almost_as_long(single_s, robots):
    assert max_robots(0.3 / 16, Demand(0.01, 1.0, 0.0), 16, single_s) == robots


@given(seconds, demands, st.floats(1.0, 64.0), seconds)
def test_with_batches_no_more_are_admitted(service_s, demand, batch, single_s):
    assert 1 <= max_robots(service_s, demand, batch, single_s) <= max_robots(service_s, demand)


@pytest.mark.parametrize('service_s', [0.0, -0.1])
def test_without_a_service_time_there_is_no_answer(service_s):
    with pytest.raises(ValueError, match=f'must be above 0, got {service_s}'):
        max_robots(service_s, A_HZ)


def test_a_robot_is_expected_to_ask_twice_a_chunk():
    assert expected_rate_hz(4.0) == 0.5


def test_an_idle_server_takes_its_own_time_and_one_with_a_line_that_of_the_line():
    assert predicted_delay_s(0.1, 0.0, 0) == pytest.approx(0.1)
    assert predicted_delay_s(0.1, 0.0, 3) == pytest.approx(0.4)
    assert predicted_delay_s(0.1, 0.5, 0) == pytest.approx(0.15)
    assert predicted_delay_s(0.1, 0.8, 0) == pytest.approx(0.3)
    assert predicted_delay_s(0.1, 0.8, 5) == pytest.approx(0.6)


shares = st.floats(-0.5, 2.0)
lengths = st.integers(0, 100)


@given(seconds, shares, shares, lengths, lengths)
def test_more_load_and_a_longer_line_never_shorten_the_delay(service_s, one, other, short, more):
    low, high = sorted((one, other))
    delay_s = predicted_delay_s(service_s, low, short)
    assert service_s <= delay_s <= predicted_delay_s(service_s, high, short + more)


@pytest.mark.parametrize('load', [0.99, 1.0, 1.5])
def test_a_server_that_is_always_busy_has_a_long_delay_but_no_endless_one(load):
    assert predicted_delay_s(0.1, load, 0) == pytest.approx(0.1 * (1 + 0.99 / 0.02))
