# SPDX-License-Identifier: Apache-2.0
"""Durations in the buckets of a histogram."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lerobot_serve.telemetry.durations import Histogram, LATENCY_BOUNDS_S


@given(st.lists(st.floats(0, 100)))
def test_each_bound_counts_all_that_is_not_longer(durations):
    buckets = Histogram()
    for duration in durations:
        buckets.add(duration)
    rows = buckets.cumulative()
    assert [bound for bound, _ in rows] == [*map(str, LATENCY_BOUNDS_S), '+Inf']
    for bound, count in rows:
        assert count == sum(duration <= float(bound) for duration in durations)
    assert abs(buckets.sum_s - sum(durations)) < 1e-6
