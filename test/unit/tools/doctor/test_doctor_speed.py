# SPDX-License-Identifier: Apache-2.0
"""The 20 % rule, and how many robots one server can serve."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.tools.doctor.finding import FindingLevel
from lerobot_serve.tools.doctor.speed import (
    check_capacity,
    check_forward_time,
    PolicySpeed,
    UTILISATION,
)


def pace(p99_ms: float, *, fps: float = 50, chunk_size: int = 50) -> PolicySpeed:
    return PolicySpeed(p99_ms / 2, p99_ms, 200, fps, chunk_size)


@pytest.mark.parametrize(
    ('p99_ms', 'chunk_size', 'verdict'),
    [
        # 50 Hz: a period of 20 ms, of which 4 are a fifth
        (4.0, 1, FindingLevel.OK),
        (4.1, 1, FindingLevel.FAILURE),
        (4.1, 50, FindingLevel.WARNING),
        (499.0, 50, FindingLevel.WARNING),
        (501.0, 50, FindingLevel.FAILURE),
    ],
)
def test_a_fifth_of_the_period_unless_a_chunk_hides_it(p99_ms, chunk_size, verdict):
    finding = check_forward_time(pace(p99_ms, chunk_size=chunk_size))
    assert finding.verdict is verdict
    assert 'recommended: below 20 %' in finding.found
    assert f'p99 {p99_ms:.1f} ms' in finding.found


def test_without_a_rate_the_times_are_told_all_the_same():
    finding = check_forward_time(pace(7, fps=0))
    assert finding.verdict is FindingLevel.SKIPPED
    assert 'p99 7.0 ms' in finding.found
    assert 'trained_fps' in finding.found
    assert (
        check_capacity(pace(7, fps=0), exclusive=False, network_s=0).verdict
        is FindingLevel.SKIPPED
    )


def test_capacity_is_what_chunks_leave_time_for():
    # a chunk lasts 1 s, a request takes 20 ms: 50 in a row, 35 at 70 %
    found = check_capacity(PolicySpeed(20, 25, 100, 50, 50), exclusive=False, network_s=0.01).found
    assert found.startswith('about 35:')
    assert 'admits 20' in found


def test_a_policy_of_one_session_serves_one_robot():
    assert check_capacity(pace(5), exclusive=True, network_s=0).found.startswith('one:')


def test_a_policy_that_serves_nobody_is_a_failure_with_its_remedy():
    finding = check_capacity(PolicySpeed(900, 900, 9, 50, 50), exclusive=False, network_s=0)
    assert finding.verdict is FindingLevel.FAILURE
    assert 'GPU' in finding.remedy


TIMES = st.floats(0, 1e5)


@given(TIMES, TIMES, st.just(0.0) | st.floats(0.1, 1000), st.integers(1, 200), st.booleans())
def test_any_times_are_judged(p50_ms, more_ms, fps, chunk_size, exclusive):
    given_pace = PolicySpeed(p50_ms, p50_ms + more_ms, 10, fps, chunk_size)
    check_forward_time(given_pace)
    found = check_capacity(given_pace, exclusive=exclusive, network_s=0.01)
    if found.found.startswith('about'):
        count = int(found.found.split()[1].rstrip(':'))
        assert count >= 1
        assert count * max(p50_ms, 1e-3) <= UTILISATION * given_pace.chunk_ms * (1 + 1e-9)


@given(st.floats(0.1, 100), st.floats(1, 10))
def test_slower_is_never_judged_better(p99_ms, factor):
    order = [FindingLevel.OK, FindingLevel.WARNING, FindingLevel.FAILURE]
    quick, slow = check_forward_time(pace(p99_ms)), check_forward_time(pace(p99_ms * factor))
    assert order.index(quick.verdict) <= order.index(slow.verdict)
