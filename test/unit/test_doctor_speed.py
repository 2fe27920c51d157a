"""The 20 % rule, and how many robots one server can serve."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.doctor.finding import Verdict
from lerobot_serve.doctor.speed import fast_enough, Pace, robots, UTILISATION


def pace(p99_ms: float, *, fps: float = 50, chunk_size: int = 50) -> Pace:
    return Pace(p99_ms / 2, p99_ms, 200, fps, chunk_size)


@pytest.mark.parametrize(
    ('p99_ms', 'chunk_size', 'verdict'),
    [
        # 50 Hz: a period of 20 ms, of which 4 are a fifth
        (4.0, 1, Verdict.OK),
        (4.1, 1, Verdict.FAILURE),
        (4.1, 50, Verdict.WARNING),
        (499.0, 50, Verdict.WARNING),
        (501.0, 50, Verdict.FAILURE),
    ],
)
def test_a_fifth_of_the_period_unless_a_chunk_hides_it(p99_ms, chunk_size, verdict):
    finding = fast_enough(pace(p99_ms, chunk_size=chunk_size))
    assert finding.verdict is verdict
    assert '20% is the rule' in finding.found
    assert f'p99 {p99_ms:.1f} ms' in finding.found


def test_without_a_rate_the_times_are_told_all_the_same():
    finding = fast_enough(pace(7, fps=0))
    assert finding.verdict is Verdict.SKIPPED
    assert 'p99 7.0 ms' in finding.found
    assert 'trained_fps' in finding.found
    assert robots(pace(7, fps=0), exclusive=False, network_s=0).verdict is Verdict.SKIPPED


def test_capacity_is_what_chunks_leave_time_for():
    # a chunk lasts 1 s, a request takes 20 ms: 50 in a row, 35 at 70 %
    found = robots(Pace(20, 25, 100, 50, 50), exclusive=False, network_s=0.01).found
    assert found.startswith('about 35:')
    assert 'takes 20' in found


def test_a_policy_of_one_session_serves_one_robot():
    assert robots(pace(5), exclusive=True, network_s=0).found.startswith('one:')


def test_a_policy_that_serves_nobody_is_a_failure_with_its_remedy():
    finding = robots(Pace(900, 900, 9, 50, 50), exclusive=False, network_s=0)
    assert finding.verdict is Verdict.FAILURE
    assert 'GPU' in finding.remedy


TIMES = st.floats(0, 1e5)


@given(TIMES, TIMES, st.just(0.0) | st.floats(0.1, 1000), st.integers(1, 200), st.booleans())
def test_any_times_are_judged(p50_ms, more_ms, fps, chunk_size, exclusive):
    given_pace = Pace(p50_ms, p50_ms + more_ms, 10, fps, chunk_size)
    fast_enough(given_pace)
    found = robots(given_pace, exclusive=exclusive, network_s=0.01)
    if found.found.startswith('about'):
        count = int(found.found.split()[1].rstrip(':'))
        assert count >= 1
        assert count * max(p50_ms, 1e-3) <= UTILISATION * given_pace.chunk_ms * (1 + 1e-9)


@given(st.floats(0.1, 100), st.floats(1, 10))
def test_slower_is_never_judged_better(p99_ms, factor):
    order = [Verdict.OK, Verdict.WARNING, Verdict.FAILURE]
    quick, slow = fast_enough(pace(p99_ms)), fast_enough(pace(p99_ms * factor))
    assert order.index(quick.verdict) <= order.index(slow.verdict)
