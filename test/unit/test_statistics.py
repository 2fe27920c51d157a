"""Statistics: load over a window, percentiles of the last requests, drops by reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.server.statistics import KEPT, LOAD_WINDOW_NS, Statistics

S = 1_000_000_000


def busy(statistics: Statistics, begin_ns: int, end_ns: int) -> None:
    statistics.served(begin_ns=begin_ns, end_ns=end_ns, wait_ms=1.0, inference_ms=2.0)


def test_load_is_the_busy_share_of_the_window():
    statistics = Statistics()
    assert statistics.load(0) == 0.0
    busy(statistics, 0, 1 * S)
    busy(statistics, 5 * S, 9 * S)
    assert statistics.load(10 * S) == pytest.approx(0.5)


def test_load_forgets_what_left_the_window_and_cuts_what_reaches_into_it():
    statistics = Statistics()
    busy(statistics, 0, 4 * S)
    assert statistics.load(12 * S) == pytest.approx(0.2)
    assert statistics.load(14 * S) == 0.0


@given(
    st.lists(st.tuples(st.integers(0, 5 * S), st.integers(0, 20 * S)), max_size=20),
    st.integers(0, 30 * S),
)
def test_load_is_a_share(durations, after_ns):
    statistics, now_ns = Statistics(), 0
    for pause_ns, busy_ns in durations:
        busy(statistics, now_ns + pause_ns, now_ns + pause_ns + busy_ns)
        now_ns += pause_ns + busy_ns
    assert 0 <= statistics.load(now_ns + after_ns) <= 1
    assert statistics.load(now_ns + LOAD_WINDOW_NS) == 0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_that_of_the_durations(values, percent):
    statistics = Statistics()
    for value in values:
        statistics.served(begin_ns=0, end_ns=1, wait_ms=value, inference_ms=2 * value)
    assert statistics.percentile_ms('wait', percent) == np.percentile(values, percent)
    doubled = np.percentile([2 * value for value in values], percent)
    assert statistics.percentile_ms('inference', percent) == doubled


def test_a_percentile_of_nothing_is_zero():
    assert Statistics().percentile_ms('inference', 99) == 0.0


def test_only_the_last_durations_are_kept():
    statistics = Statistics()
    for _ in range(KEPT):
        statistics.served(begin_ns=0, end_ns=0, wait_ms=1e3, inference_ms=1e3)
    for _ in range(KEPT):
        busy(statistics, 0, 0)
    assert statistics.percentile_ms('wait', 100) == 1.0
    assert statistics.percentile_ms('inference', 0) == 2.0


def test_everything_is_counted():
    statistics = Statistics()
    for superseded in (False, True, True):
        statistics.arrived(superseded=superseded)
    for reason in ('bad_jpeg', 'no_session', 'bad_jpeg'):
        statistics.drop(reason)
    busy(statistics, 0, 1)
    assert (statistics.requests, statistics.superseded, statistics.chunks) == (3, 2, 1)
    assert statistics.drop_counts() == {'bad_jpeg': 2, 'no_session': 1}


def test_the_counts_that_are_handed_out_are_a_copy():
    statistics = Statistics()
    statistics.drop_counts()['x'] = 1
    assert statistics.drop_counts() == {}
