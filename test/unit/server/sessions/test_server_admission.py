# SPDX-License-Identifier: Apache-2.0
"""Admission: how many sessions an operator or measurements allow, and how long one waits."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.replacing import replace
from support.server.server_core_rig import ask, FIXED, MEASURED, request, Rig

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import (
    Demand,
    expected_rate_hz,
    max_robots,
    predicted_delay_s,
)

S = 1_000_000_000
# three seconds and a third at 30 Hz: a robot is expected to ask every 5/3 s
ROWS = {'chunk_size': 100}
CHUNK_S = 100 / 30


def rig_with(service_s: float, admitted: ServerParameters = MEASURED, **changes: object) -> Rig:
    rig = Rig(None, admitted, **{**ROWS, **changes})
    rig.statistics.reset_for_policy(service_s)
    return rig


def test_fixed_admission_takes_max_sessions_however_slow_the_policy():
    rig = rig_with(10.0, FIXED)
    assert rig.core.session_limit(CHUNK_S, 0) == 100


@pytest.mark.parametrize(
    ('service_s', 'admitted', 'chunk_s', 'robots'),
    [
        (0.02, MEASURED, CHUNK_S, 66),
        (0.5, MEASURED, CHUNK_S, 2),
        (0.5, replace(MEASURED, network_round_trip_ms=1000.0), CHUNK_S, 1),
        (100.0, MEASURED, CHUNK_S, 1),
        (0.0001, MEASURED, CHUNK_S, 100),
        # nothing is known of the policy, or of the robot
        (0.0, MEASURED, CHUNK_S, 100),
        (0.5, MEASURED, 0.0, 100),
    ],
)
def test_before_robots_have_asked_the_expected_rate_counts(service_s, admitted, chunk_s, robots):
    assert rig_with(service_s, admitted).core.session_limit(chunk_s, 0) == robots


def test_who_is_one_too_many_is_refused_and_who_is_there_stays():
    rig = rig_with(0.5)
    rig.open(1)
    rig.open(2)
    with pytest.raises(SessionRefused) as refused:
        rig.open(3)
    assert refused.value.code == Refusal.CAPACITY
    assert '2 can be served' in str(refused.value)
    assert rig.open(1, session_epoch=8)


def test_the_service_time_is_measured_on():
    rig = rig_with(0.5)
    for i in range(3):
        rig.statistics.record_batch_start(i * S)
        rig.statistics.record_batch_end(i * S + S // 50, 1)
    assert rig.core.session_limit(CHUNK_S, 0) == 66


def test_a_batch_is_measured_as_a_whole():
    # alone 1 s, sixteen together 1.6 s; half of the chunk leaves 1.17 s
    rig = rig_with(1.0, replace(MEASURED, network_round_trip_ms=500.0))
    rig.statistics.record_batch_start(0, 16)
    rig.statistics.record_batch_end(S * 8 // 5, 16)
    assert rig.core.session_limit(CHUNK_S, 0) == 5


def ask_often(rig: Rig, rate_hz: int, begin_s: int, end_s: int) -> None:
    for i in range(begin_s * rate_hz, end_s * rate_hz):
        rig.core.enqueue(request(), i * S // rate_hz)


def test_the_measured_rate_counts_once_it_has_settled():
    rig = rig_with(0.02)
    rig.open(now_ns=0)
    ask_often(rig, 10, 0, 10)
    assert rig.core.session_limit(CHUNK_S, 9 * S) == 66
    assert rig.core.session_limit(CHUNK_S, 10 * S) == 4
    # who stops asking says nothing of how often others would
    assert rig.core.session_limit(CHUNK_S, 30 * S) == 66


def test_the_rate_is_that_of_one_robot():
    rig = rig_with(0.02)
    rig.open(1)
    rig.open(2)
    ask_often(rig, 10, 0, 10)
    assert rig.core.session_limit(CHUNK_S, 10 * S) == 8


def test_the_first_robot_after_a_pause_is_expected_to_ask_like_any():
    rig = rig_with(0.02)
    rig.open(now_ns=0)
    ask_often(rig, 10, 0, 20)
    rig.core.sessions.close('robot_1', 7)
    rig.open(2, now_ns=20 * S)
    assert rig.core.session_limit(CHUNK_S, 20 * S) == 66
    assert rig.core.session_limit(CHUNK_S, 29 * S) == 66


def test_measured_admission_is_switched_on_and_off_live():
    rig = rig_with(0.5, FIXED)
    rig.core.apply_parameters(MEASURED)
    assert rig.core.session_limit(CHUNK_S, 0) == 2
    rig.core.apply_parameters(replace(MEASURED, max_sessions=1))
    assert rig.core.session_limit(CHUNK_S, 0) == 1


@pytest.mark.parametrize(
    ('supports_rtc', 'asked', 'robots'),
    [
        (True, {}, 13),
        (True, {'fps': 60.0}, 6),
        (True, {'wants_rtc': True, 'rtc_execution_horizon': 50}, 6),
        (True, {'wants_rtc': True, 'rtc_execution_horizon': 0}, 13),
        (True, {'wants_rtc': True, 'rtc_execution_horizon': 2**32 - 1}, 13),
        (True, {'wants_rtc': False, 'rtc_execution_horizon': 50}, 13),
        (False, {'wants_rtc': True, 'rtc_execution_horizon': 50}, 13),
        # refused by the contract; here they must only do no harm
        (True, {'fps': 0.0}, 100),
        (True, {'fps': float('nan')}, 100),
        (True, {'fps': float('inf')}, 100),
    ],
)
def test_robots_that_play_shorter_chunks_are_fewer(supports_rtc, asked, robots):
    rig = rig_with(0.1, supports_rtc=supports_rtc)
    assert rig.core.load_report(ask(**asked)).max_sessions == robots


def test_a_report_tells_how_busy_the_server_is():
    rig = rig_with(0.1)
    rig.open(1)
    rig.open(2)
    report = rig.core.load_report()
    assert (report.load, report.active_sessions, report.max_sessions) == (0.0, 2, 13)
    assert report.predicted_delay_ms == pytest.approx(100.0)
    for number in (1, 2):
        rig.core.enqueue(request(number), 0)
    assert rig.core.load_report().predicted_delay_ms == pytest.approx(300.0)
    # busy since long ago
    rig.statistics.record_batch_start(time.monotonic_ns() - 60 * S)
    assert rig.core.load_report().load == 1.0
    assert rig.core.load_report().predicted_delay_ms > 1000


def test_a_policy_that_says_no_rate_is_reported_with_what_the_operator_allows():
    assert rig_with(0.5, trained_fps=0.0).core.load_report().max_sessions == 100


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
