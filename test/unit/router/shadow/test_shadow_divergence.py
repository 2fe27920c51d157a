# SPDX-License-Identifier: Apache-2.0
"""How far apart rows are, and how far that is in spreads of the policy that drives."""

from __future__ import annotations

from math import inf, isnan, nan, sqrt

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest
from support.router.shadow_rig import ramp

from lerobot_serve.router.shadow.divergence import divergence, Incomparable, shared_rows

finite = st.floats(-1e3, 1e3, width=32)
any_float = st.floats(width=32)


def rows_of(table: np.ndarray, *numbers: int) -> dict[int, np.ndarray]:
    return {number: table[number] for number in numbers}


def test_equal_rows_are_not_apart():
    apart = divergence(ramp(0, 1, 5), ramp(0, 1, 5))
    assert (apart.rows, apart.overall, apart.per_action) == (5, 0.0, (0.0, 0.0))


def test_each_action_has_its_own():
    apart = divergence(np.zeros((2, 2)), np.array([[3.0, 0.0], [4.0, 0.0]], np.float32))
    assert apart.per_action == (sqrt(12.5), 0.0)
    assert apart.overall == sqrt(25 / 4)


@given(arrays.arrays(np.float32, (3, 2), elements=finite), finite)
def test_a_constant_difference_is_itself(rows, difference):
    moved = (rows.astype(np.float64) + difference).astype(np.float64)
    apart = divergence(rows, moved)
    assert apart.overall == pytest.approx(abs(difference), abs=1e-9)
    assert apart.per_action == pytest.approx((abs(difference),) * 2, abs=1e-9)


@pytest.mark.parametrize('bad', [nan, inf, -inf])
def test_what_is_no_number_is_infinitely_far_and_said_so(bad):
    rows = ramp(0, 1, 3)
    other = rows.copy()
    other[1, 1] = bad
    apart = divergence(rows, other)
    assert isnan(apart.overall)
    assert apart.per_action[0] == 0.0
    assert isnan(apart.per_action[1])


tables = arrays.arrays(np.float32, (3, 2), elements=any_float)


@given(tables, tables)
def test_no_rows_do_harm(ours, theirs):
    apart = divergence(ours, theirs)
    for value in (apart.overall, *apart.per_action):
        assert isnan(value) or 0 <= value < inf


def test_only_rows_that_both_have_are_compared():
    table = ramp(0, 1, 9)
    assert shared_rows(rows_of(table, 7, 2, 3), table[:4]) == [2, 3]
    assert shared_rows(rows_of(table, 8), table) == [8]


@pytest.mark.parametrize(
    ('others', 'reason'),
    [
        (np.zeros((9, 3)), 'shadow_shape'),
        (np.zeros((0, 0)), 'shadow_shape'),
        (np.zeros((2, 2)), 'shadow_short'),
        (np.zeros((0, 2)), 'shadow_short'),
    ],
)
def test_what_cannot_be_compared_says_why(others, reason):
    with pytest.raises(Incomparable) as caught:
        shared_rows(rows_of(ramp(0, 1, 9), 2, 3), others)
    assert caught.value.reason == reason
