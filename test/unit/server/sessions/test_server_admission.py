# SPDX-License-Identifier: Apache-2.0
"""How many sessions are admitted: what the operator says, or what measurements allow."""

from __future__ import annotations

from dataclasses import replace
import time

import pytest
from support.server.server_core_rig import ask, FIXED, MEASURED, request, Rig

from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.server.parameters import ServerParameters

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
