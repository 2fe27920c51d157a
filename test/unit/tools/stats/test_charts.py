# SPDX-License-Identifier: Apache-2.0
"""Axes with round numbers and times of day, and events in every picture."""

from __future__ import annotations

from itertools import pairwise
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.tools.output.line_charts import (
    line_chart,
    round_up,
    TIME_TICKS,
    time_ticks,
    VALUE_TICKS,
    value_ticks,
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
    assert '2023-11-' in picture


@pytest.mark.parametrize('time_s', [0.0, -1e12, 1e18])
def test_any_time_can_be_drawn(time_s):
    assert '<svg' in line_chart('x', {'a': [(time_s, math.pi)]})
