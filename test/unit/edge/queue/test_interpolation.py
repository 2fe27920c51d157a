# SPDX-License-Identifier: Apache-2.0
"""Several commands for each action: between the two, never beyond, and no invented numbers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
import numpy as np
import pytest

from lerobot_serve.edge.control.playback import Interpolator

WIDTH = 3


def emitted(interpolator: Interpolator, *actions: object) -> list:
    """Feed the actions, each when one is wanted; return all steps."""
    steps = []
    for action in actions:
        assert interpolator.needs_action
        interpolator.feed(np.asarray(action))
        while (step := interpolator.take()) is not None:
            steps.append(step.tolist())
    return steps


@pytest.mark.parametrize('kind', [np.float32, np.float64])
@pytest.mark.parametrize(
    ('multiplier', 'steps'),
    [
        (1, [0, 3, 9]),
        (2, [0, 1.5, 3, 6, 9]),
        (3, [0, 1, 2, 3, 5, 7, 9]),
    ],
)
def test_the_documented_values(multiplier, steps, kind):
    actions = np.array([[0], [3], [9]], kind)
    assert emitted(Interpolator(multiplier), *actions) == [[step] for step in steps]


def test_nothing_fed_means_nothing_to_play():
    interpolator = Interpolator(3)
    assert interpolator.needs_action
    assert interpolator.take() is None
    assert interpolator.needs_action


def test_a_reset_in_the_middle_forgets_where_it_came_from():
    interpolator = Interpolator(3)
    emitted(interpolator, [0.0])
    interpolator.feed(np.array([3.0]))
    assert interpolator.take().tolist() == [1.0]
    assert not interpolator.needs_action
    interpolator.reset()
    assert interpolator.take() is None
    assert emitted(interpolator, [30.0], [33.0]) == [[30.0], [31.0], [32.0], [33.0]]


def test_an_action_that_is_not_finite_is_passed_on_as_it_is():
    steps = emitted(Interpolator(3), [0.0, 0.0], [np.nan, 3.0], [6.0, 6.0], [9.0, np.inf])
    assert repr(steps) == repr(
        [[0.0, 0.0]] + 3 * [[np.nan, 3.0]] + 3 * [[6.0, 6.0]] + 3 * [[9.0, np.inf]]
    )


def test_the_largest_numbers_do_not_overflow():
    most = np.finfo(np.float64).max
    assert emitted(Interpolator(2), [-most], [most]) == [[-most], [0.0], [most]]


@pytest.mark.parametrize('multiplier', [0, -1])
def test_an_action_needs_a_step(multiplier):
    with pytest.raises(ValueError, match=f'1 or more steps per action, got {multiplier}'):
        Interpolator(multiplier)


kinds = st.sampled_from((np.float32, np.float64))
plans = st.tuples(kinds, st.integers(1, 6)).flatmap(
    lambda shape: arrays(shape[0], (shape[1], WIDTH), elements={'allow_nan': False})
)


@given(plans, st.integers(1, 7))
def test_steps_lie_between_the_two_actions_and_end_in_the_later(actions, multiplier):
    steps = emitted(Interpolator(multiplier), *actions)
    assert len(steps) == 1 + multiplier * (len(actions) - 1)
    assert steps[::multiplier] == actions.tolist()
    for start in range(len(actions) - 1):
        between = steps[start * multiplier : (start + 1) * multiplier + 1]
        check_line(actions[start], actions[start + 1], np.array(between, actions.dtype))


def check_line(start: np.ndarray, end: np.ndarray, line: np.ndarray) -> None:
    """Check that each step is where a line drawn without rounding would be."""
    if not (np.isfinite(start).all() and np.isfinite(end).all()):
        assert (line[1:] == end).all()
        return
    assert (line >= np.minimum(start, end)).all()
    assert (line <= np.maximum(start, end)).all()
    limits = np.finfo(line.dtype)
    for column in range(WIDTH):
        first, last = Fraction(float(start[column])), Fraction(float(end[column]))
        rounding = 4 * max(abs(first), abs(last)) * Fraction(float(limits.eps))
        for number, step in enumerate(line[:, column]):
            exact = first + (last - first) * number / (len(line) - 1)
            error = abs(Fraction(float(step)) - exact)
            assert error <= rounding + 4 * Fraction(float(limits.smallest_subnormal))
