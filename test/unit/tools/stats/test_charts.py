# SPDX-License-Identifier: Apache-2.0
"""Axes with round numbers and times of day, and events in every picture."""

from __future__ import annotations

from itertools import pairwise
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.time_zone import time_zone

from lerobot_serve.tools.output.line_charts import (
    label_rows,
    label_span,
    LEFT,
    line_chart,
    MOST_ROWS,
    round_up,
    TIME_TICKS,
    time_ticks,
    VALUE_TICKS,
    value_ticks,
    WIDTH,
)

NOON_S = 1_700_000_000 - 1_700_000_000 % 86_400 + 43_200.0


@pytest.mark.parametrize(
    ('high', 'ticks'),
    [
        (100.0, [0, 20, 40, 60, 80, 100]),
        (671.0, [0, 200, 400, 600, 800, 1000]),
        (0.048, [0, 0.01, 0.02, 0.03, 0.04, 0.05]),
        (0.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
    ],
)
def test_values_are_round(high, ticks):
    top = 100.0 if high == 100.0 else round_up(high)
    assert value_ticks(top) == pytest.approx(ticks)


@given(st.floats(1e-9, 1e12))
def test_no_value_is_above_the_axis(high):
    top = round_up(high)
    assert high <= top * (1 + 1e-6)
    assert top <= 5 * high
    assert 2 <= len(value_ticks(top)) <= VALUE_TICKS + 1


@given(st.integers(0, 4 * 10**9), st.integers(0, 10**7))
def test_times_are_round_and_few(first_s, span_s):
    ticks = time_ticks(first_s, first_s + span_s)
    assert len(ticks) <= TIME_TICKS + 1
    assert all(first_s <= tick <= first_s + span_s for tick in ticks)
    steps = {round(b - a, 6) for a, b in pairwise(ticks)}
    assert len(steps) <= 1


@pytest.mark.parametrize(
    ('hours', 'label'), [(0.5, '>17:50:00<'), (9, '>20:00:00<'), (50, '>11-16 12:00<')]
)
def test_times_are_round_by_the_clock_of_the_reader(hours, label):
    with time_zone('Asia/Kathmandu'):
        picture = line_chart('x', {'a': [(NOON_S, 1.0), (NOON_S + 3600 * hours, 2.0)]})
    # noon of Greenwich
    assert 'x, from 2023-11-14 17:45:00+05:45' in picture
    assert label in picture


@given(st.floats(1e-9, 1e12))
def test_the_steps_of_values_are_equal_and_cover_the_axis(high):
    top = round_up(high)
    ticks = value_ticks(top)
    assert ticks[0] == 0 and ticks[-1] == pytest.approx(top)
    steps = [b - a for a, b in pairwise(ticks)]
    assert steps == pytest.approx([steps[0]] * len(steps))
    # 1, 2 or 5 times a power of ten
    assert f'{steps[0]:.0e}'[0] in '125'


@given(st.integers(0, 4 * 10**9), st.integers(10, 10**7))
def test_a_period_of_some_seconds_has_at_least_two_times(first_s, span_s):
    ticks = time_ticks(first_s, first_s + span_s)
    assert len(ticks) >= 2
    # no stretch at an end is longer than a step
    step_s = ticks[1] - ticks[0]
    assert ticks[0] - first_s <= step_s and first_s + span_s - ticks[-1] <= step_s


LABELS = st.lists(st.tuples(st.floats(LEFT, WIDTH), st.text('abc 5%', max_size=20)), max_size=12)


@given(LABELS)
def test_labels_of_one_row_do_not_overlap_and_stay_inside(labels):
    ordered = sorted(labels)
    rows = label_rows(ordered)
    assert all(0 <= row < MOST_ROWS for row in rows)
    placed = [(row, *label_span(*label)) for row, label in zip(rows, ordered, strict=True)]
    for row, begin, end in placed:
        assert LEFT <= begin < end <= WIDTH
        # the last row is shared when all are full
        others = [each for each in placed if each != (row, begin, end) and each[0] == row]
        if row < MOST_ROWS - 1:
            assert all(b >= end or e <= begin for _, b, e in others)


@pytest.fixture(autouse=True)
def in_utc():
    with time_zone('UTC'):
        yield


def test_a_chart_has_times_of_day_and_its_events():
    line = [(NOON_S + 3.0, 168.0), (NOON_S + 200.0, 671.0)]
    marks = [(NOON_S + 50.0, '25 %'), (NOON_S + 150.0, 'rolled back'), (NOON_S + 999.0, 'later')]
    picture = line_chart('Round trip', {'v1': line}, marks=marks)
    for text in ('12:01:00', '12:03:00', '>400<', '>1000<', '25 %', 'rolled back'):
        assert text in picture
    assert 'later' not in picture
    assert '503' not in picture
    wide = line_chart('Round trip', {'v1': line}, marks=marks, span_s=(NOON_S, NOON_S + 1000))
    assert 'later' in wide


def test_lines_that_last_days_have_dates():
    picture = line_chart('x', {'a': [(NOON_S, 1.0), (NOON_S + 5 * 86_400, 2.0)]})
    assert '>11-15 00:00<' in picture


@pytest.mark.parametrize('time_s', [0.0, -1e12, 1e18])
def test_any_time_can_be_drawn(time_s):
    assert '<svg' in line_chart('x', {'a': [(time_s, math.pi)]})
