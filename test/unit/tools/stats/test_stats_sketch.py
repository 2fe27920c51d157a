# SPDX-License-Identifier: Apache-2.0
"""Quantiles in little memory: within 1 % of sorting everything, whatever is counted."""

from __future__ import annotations

from math import floor

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from lerobot_serve.tools.stats.quantile_sketch import ERROR, LARGEST, QuantileSketch, SMALLEST
from lerobot_serve.tools.stats.time_series import BINS, Proportion, TimeSeries

values = st.lists(st.floats(0, LARGEST) | st.floats(0.01, 1000), min_size=1, max_size=60)


def sketch(counted: list[float]) -> QuantileSketch:
    made = QuantileSketch()
    for value in counted:
        made.add(value)
    return made


@given(values, st.floats(0, 1))
@settings(max_examples=200)
def test_a_quantile_is_within_its_error_of_the_exact_one(counted, part):
    exact = sorted(counted)[floor(part * (len(counted) - 1))]
    assert sketch(counted).quantile(part) == pytest.approx(exact, rel=1.001 * ERROR, abs=SMALLEST)


@given(values, values)
@settings(max_examples=100)
def test_merged_is_as_if_all_were_counted_in_one(first, second):
    merged, whole = sketch(first), sketch(first + second)
    merged.merge(sketch(second))
    assert merged.spread() == whole.spread()
    assert merged.total == pytest.approx(whole.total)


def test_without_values_there_is_no_quantile():
    assert QuantileSketch().quantile(0.5) is None
    assert QuantileSketch().spread() == {'n': 0}
    merged = QuantileSketch()
    merged.merge(QuantileSketch())
    assert merged.spread() == {'n': 0}


@given(st.lists(st.floats(-1e300, 1e300), min_size=1))
@settings(max_examples=50)
def test_no_number_is_too_much(counted):
    assert 0 <= sketch(counted).quantile(0.99) <= LARGEST


def test_its_bins_are_bounded():
    made = QuantileSketch()
    value = SMALLEST / 2
    while value < 10 * LARGEST:
        made.add(value)
        value *= 1.001
    assert len(made._bins) <= 2074


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.sampled_from('ab'), st.booleans()), max_size=99)
)
@settings(max_examples=100)
def test_a_timeline_loses_nothing_and_stays_small(told):
    timeline = TimeSeries(Proportion)
    for time_s, name, is_one in told:
        timeline.at(time_s, name).add(is_one)
    for name in 'ab':
        line = list(timeline.of(name))
        assert len(line) <= BINS
        assert [time_s for time_s, _ in line] == sorted(time_s for time_s, _ in line)
        wanted = [is_one for _, whose, is_one in told if whose == name]
        assert sum(each.of for _, each in line) == len(wanted)
        assert sum(each.part for _, each in line) == sum(wanted)


def test_times_are_near_what_was_told():
    timeline = TimeSeries(Proportion)
    for second in range(1000):
        timeline.at(second, 'a').add(True)
    line = list(timeline.of('a'))
    assert timeline.width_s == 16
    assert all(each.of == timeline.width_s for _, each in line[1:-1])
    assert abs(line[0][0] - 8) < 8
