# SPDX-License-Identifier: Apache-2.0
"""Statistics: load over a window, percentiles of the last requests, drops by reason."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.server.observability.server_statistics import (
    LOAD_WINDOW_NS,
    RECENT_LIMIT,
    ServerStatistics,
)

S = 1_000_000_000


def busy(statistics: ServerStatistics, begin_ns: int, end_ns: int, predicted: int = 1) -> None:
    """Note work that gave as many chunks; none for work that failed before the policy."""
    statistics.record_batch_start(begin_ns)
    for _ in range(predicted):
        statistics.record_chunk(wait_ms=1.0, inference_ms=2.0)
    statistics.record_batch_end(end_ns, predicted)


@pytest.mark.parametrize(
    ('spans_s', 'at_s', 'share'),
    [
        ([], 0, 0.0),
        ([(0, 1), (5, 9)], 10, 0.5),
        # what left the window is forgotten, and what reaches into it is cut
        ([(0, 4)], 12, 0.2),
        ([(0, 4)], 14, 0.0),
    ],
)
def test_load_is_the_busy_share_of_the_window(spans_s, at_s, share):
    statistics = ServerStatistics()
    for begin_s, end_s in spans_s:
        busy(statistics, begin_s * S, end_s * S)
    assert statistics.load(at_s * S) == pytest.approx(share)


def test_load_counts_what_failed_and_what_still_runs():
    statistics = ServerStatistics()
    busy(statistics, 0, 2 * S, predicted=0)
    assert statistics.load(10 * S) == pytest.approx(0.2)
    statistics.record_batch_start(10 * S)
    assert statistics.load(11 * S) == pytest.approx(0.2)
    assert statistics.load(14 * S) == pytest.approx(0.4)
    # a policy that hangs
    assert statistics.load(60 * S) == 1.0
    statistics.record_batch_end(60 * S, 1)
    assert statistics.load(60 * S) == 1.0
    assert statistics.load(65 * S) == pytest.approx(0.5)


@given(
    st.lists(st.tuples(st.integers(0, 5 * S), st.integers(0, 20 * S)), max_size=20),
    st.integers(0, 30 * S),
)
def test_load_is_a_share(durations, after_ns):
    statistics, now_ns = ServerStatistics(), 0
    for pause_ns, busy_ns in durations:
        busy(statistics, now_ns + pause_ns, now_ns + pause_ns + busy_ns)
        now_ns += pause_ns + busy_ns
    assert 0 <= statistics.load(now_ns + after_ns) <= 1
    assert statistics.load(now_ns + LOAD_WINDOW_NS) == 0


def test_arrivals_are_those_of_late():
    statistics = ServerStatistics()
    for i in range(20):
        statistics.record_arrival(i * S, superseded=bool(i % 2))
    assert [statistics.arrivals(s * S) for s in (19, 24, 30)] == [10, 5, 0]
    assert statistics.requests == 20


def test_the_service_time_is_that_of_the_warm_up_until_there_is_a_better_one():
    statistics = ServerStatistics()
    assert statistics.service_s() == 0.0
    statistics.reset_for_policy(0.5)
    assert statistics.service_s() == 0.5
    busy(statistics, 0, 1 * S, predicted=0)
    assert statistics.service_s() == 0.5
    for begin_s, lasts_s in ((10, 1), (20, 9), (30, 2)):
        busy(statistics, begin_s * S, (begin_s + lasts_s) * S)
    # the median: one hiccup does not close the door
    assert statistics.service_s() == 2.0


def test_in_a_batch_each_takes_its_share():
    statistics = ServerStatistics()
    statistics.reset_for_policy(1.0)
    busy(statistics, 0, 2 * S, predicted=4)
    assert (statistics.service_s(), statistics.batch_size()) == (0.5, 4)
    assert statistics.single_s() == 1.0


def test_a_request_alone_takes_as_long_as_the_shortest_one_since_the_warm_up():
    statistics = ServerStatistics()
    statistics.reset_for_policy(1.0)
    for begin_s, lasts_s, predicted, expected_s in (
        (0, 2, 1, 1.0),
        (10, 0.5, 4, 1.0),
        (20, 0.25, 1, 0.25),
        (30, 3, 1, 0.25),
        (40, 0.1, 0, 0.25),
    ):
        busy(statistics, begin_s * S, int((begin_s + lasts_s) * S), predicted=predicted)
        assert statistics.single_s() == expected_s
    statistics.reset_for_policy(0.5)
    assert statistics.single_s() == 0.5


def test_a_new_policy_begins_with_durations_of_its_own_and_all_counts():
    statistics = ServerStatistics()
    busy(statistics, 0, 4 * S)
    statistics.record_arrival(0, superseded=True)
    statistics.record_drop('bad_jpeg')
    statistics.reset_for_policy(0.25)
    assert (statistics.service_s(), statistics.batch_size()) == (0.25, 1)
    assert statistics.load(4 * S) == 0.0
    assert statistics.percentile_ms('wait', 50) == statistics.percentile_ms('inference', 50) == 0
    assert (statistics.requests, statistics.superseded, statistics.chunks) == (1, 1, 1)
    assert statistics.drop_counts() == {'bad_jpeg': 1}


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_a_percentile_is_that_of_the_durations(values, percent):
    statistics = ServerStatistics()
    for value in values:
        statistics.record_chunk(wait_ms=value, inference_ms=2 * value)
    assert statistics.percentile_ms('wait', percent) == np.percentile(values, percent)
    doubled = np.percentile([2 * value for value in values], percent)
    assert statistics.percentile_ms('inference', percent) == doubled


def test_only_the_last_durations_are_kept():
    statistics = ServerStatistics()
    for _ in range(RECENT_LIMIT):
        statistics.record_chunk(wait_ms=1e3, inference_ms=1e3)
        busy(statistics, 0, 100 * S)
    for _ in range(RECENT_LIMIT):
        busy(statistics, 0, 1 * S)
    assert statistics.percentile_ms('wait', 100) == 1.0
    assert statistics.percentile_ms('inference', 0) == 2.0
    assert statistics.service_s() == 1.0


def test_what_is_kept_of_the_past_is_bounded():
    statistics = ServerStatistics()
    for i in range(100):
        statistics.record_arrival(i * S, superseded=False)
        busy(statistics, i * S, i * S + 1)
    assert len(statistics._arrivals_ns) <= 10
    assert len(statistics._busy) <= 11


def test_the_counts_that_are_handed_out_are_a_copy():
    statistics = ServerStatistics()
    statistics.drop_counts()['x'] = 1
    assert statistics.drop_counts() == {}
