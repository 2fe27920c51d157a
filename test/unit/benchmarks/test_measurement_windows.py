# SPDX-License-Identifier: Apache-2.0

import math

import numpy as np
import pytest

from benchmarks.results import windows
from benchmarks.results.windows import Window


def window(cpu_s: float = 0.1, held_mb: float = 100.0, slowest_ms: float = 9.0) -> Window:
    latencies_ms = [1.0] * 99 + [slowest_ms]
    return Window(2.0, latencies_ms, {'router': cpu_s}, {'router': held_mb})


def test_a_window_tells_what_a_request_cost():
    assert window(cpu_s=0.2).cpu_ms == {'router': pytest.approx(2.0)}
    assert window().p99_ms == pytest.approx(1.08)


def test_a_window_without_answers_claims_nothing():
    empty = Window(1.0, [], {'router': 0.1}, {'router': 1.0})
    assert math.isnan(empty.p99_ms)
    assert math.isnan(empty.cpu_ms['router'])


def test_what_robots_waited_in_all_windows_stays_in_order():
    run = [Window(1.0, [1.0, 2.0], {}, {}), Window(1.0, np.array([3.0]), {}, {})]
    assert windows.all_latencies_ms(run).tolist() == [1.0, 2.0, 3.0]


def test_the_share_of_a_core_is_that_of_the_whole_run():
    assert windows.share_of_a_core([window(0.5), window(1.5)], 'router') == 0.5


@pytest.mark.parametrize(('count', 'length'), [(3, 1), (5, 1), (6, 2), (12, 4)])
def test_thirds_are_as_long_and_do_not_meet(count, length):
    run = [window(held_mb=float(number)) for number in range(count)]
    first, last = windows.thirds(run)
    assert list(first) == run[:length]
    assert list(last) == run[-length:]


def test_two_windows_have_no_thirds():
    with pytest.raises(ValueError, match='2 windows have no thirds; measure three at least'):
        windows.thirds([window(), window()])


def test_a_cost_has_grown_when_its_median_is_above_all_earlier_ones():
    assert windows.is_not_above([1.0, 3.0], [2.0, 2.9, 99.0])
    assert not windows.is_not_above([1.0, 3.0], [1.0, 3.1, 3.2])
    assert not windows.is_not_above([1.0, 3.0], [math.nan])
    assert not windows.is_not_above([math.nan], [1.0])


def test_a_run_that_stays_as_it_is_is_flat():
    run = [window(cpu_s) for cpu_s in (0.1, 0.12, 0.1, 0.3, 0.11, 0.12)]
    goals = windows.steady_goals(run)
    assert goals == {
        'p99 stays': True,
        'processor time of router stays': True,
        'memory of router stays within 5 MB': True,
    }
    assert windows.steady_ratios(run) == {
        'p99': 1.0,
        'processor time of router': 1.045,
        'memory of router': 1.0,
    }


@pytest.mark.parametrize(
    ('end', 'missed'),
    [
        ({'slowest_ms': 90.0}, 'p99 stays'),
        ({'cpu_s': 0.11}, 'processor time of router stays'),
        ({'held_mb': 105.1}, 'memory of router stays within 5 MB'),
    ],
)
def test_whatever_grows_in_the_course_of_time_is_told(end, missed):
    run = [window()] * 4 + [window(**end)] * 2
    assert [goal for goal, held in windows.steady_goals(run).items() if not held] == [missed]


def test_memory_that_is_taken_in_the_beginning_is_no_growth():
    run = [window(held_mb=held) for held in (50.0, 100.0, 101.0, 102.0, 103.0, 104.0)]
    assert all(windows.steady_goals(run).values())


def test_a_ratio_to_nothing_is_none():
    assert windows.ratio_of_medians([1.0, 2.0, 3.0], [4.0]) == 2.0
    assert math.isnan(windows.ratio_of_medians([0.0], [4.0]))
