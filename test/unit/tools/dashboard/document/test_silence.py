# SPDX-License-Identifier: Apache-2.0
"""When a source counts as silent, by a clock of the test."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.tools.dashboard.document.silence import FORGET_S, Source


def heard_every(period_s: float, count: int = 10) -> Source:
    source = Source()
    for number in range(count):
        source.on_message(number * period_s)
    return source


@pytest.mark.parametrize(
    ('period_s', 'limit_s'), [(0.2, 2.0), (0.5, 2.0), (1.0, 3.0), (5.0, 15.0), (60.0, 180.0)]
)
def test_a_source_is_silent_after_three_periods_and_two_seconds_at_least(period_s, limit_s):
    source = heard_every(period_s)
    last_s = 9 * period_s
    assert source.limit_s == pytest.approx(limit_s)
    assert not source.is_silent(last_s + limit_s - 0.01, publishers=1)
    assert source.is_silent(last_s + limit_s + 0.01, publishers=1)


def test_without_a_publisher_it_is_silent_at_once():
    source = heard_every(1.0)
    assert source.is_silent(9.0, publishers=0)
    assert not source.is_silent(9.0, publishers=2)


def test_what_was_never_heard_of_is_not_silent():
    assert not Source().is_silent(1e9, publishers=0)


def test_a_latched_state_of_a_process_that_hangs_becomes_silent():
    source = Source()
    source.on_message(0.0)
    assert not source.is_silent(1.9, 1) and source.is_silent(2.1, 1)


def test_one_long_gap_is_not_usual():
    source = heard_every(0.2)
    source.on_message(100.0)
    assert source.limit_s == 2.0
    assert not source.is_silent(101.0, 1) and source.is_silent(102.1, 1)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=30), st.floats(0.001, 50))
def test_a_message_ends_every_silence(gaps, later_s):
    source, now_s = Source(), 0.0
    for gap_s in gaps:
        now_s += gap_s
        source.on_message(now_s)
        assert not source.is_silent(now_s, 1)
    limit_s = source.limit_s
    assert source.is_silent(now_s + later_s, 1) == (now_s + later_s - now_s > limit_s)


@pytest.mark.parametrize(
    ('publishers', 'age_s', 'is_gone'),
    [
        (0, FORGET_S + 1, True),
        (0, FORGET_S - 1, False),
        # it hangs: whoever looks for it must find it
        (1, FORGET_S + 1, False),
        (1, FORGET_S - 1, False),
    ],
)
def test_a_source_leaves_after_ten_minutes_without_a_publisher(publishers, age_s, is_gone):
    assert heard_every(1.0).is_gone(9.0 + age_s, publishers) is is_gone


def test_a_source_that_was_never_heard_of_leaves_with_its_publisher():
    assert Source().is_gone(0.0, 0) and not Source().is_gone(0.0, 1)
