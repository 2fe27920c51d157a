# SPDX-License-Identifier: Apache-2.0
"""What the cage would have said: exactly what a real one says to the same commands."""

from __future__ import annotations

from math import inf, isfinite, nan

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest
from support.edge.cage_rig import robots
from support.router.shadow_rig import ask, FPS, LIMITS, NAMES, ramp

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion, Verdict
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.limits_encoding import encode_limits
from lerobot_serve.edge.control.playback import Interpolator
from lerobot_serve.router.shadow.remote_cage import (
    make_remote_cage,
    RemoteCage,
    RemoteCages,
    would_trip,
)

STEP_S = 0.1
CAGE = RemoteCage(MotionLimits(LIMITS, STEP_S))
NOTHING = np.zeros((0, 0), np.float32)


def slow(**limits: float) -> RemoteCage:
    """Return a cage of one position with these limits and no others to speak of."""
    given = {'low': -100.0, 'high': 100.0, 'max_step': 50.0, **limits}
    return RemoteCage(MotionLimits((ActionLimit('p', 'p', Motion.POSITION, **given),), STEP_S))


def line(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


# what trips


def test_what_is_within_the_limits_passes():
    assert not would_trip(CAGE, ramp(-0.2, 0.1, 2), ramp(0.0, 0.1, 8), [])


@pytest.mark.parametrize('bad', [nan, inf, -inf])
def test_what_is_no_number_trips_whatever_the_limits(bad):
    rows = ramp(0.0, 0.1, 4)
    rows[2, 1] = bad
    assert would_trip(CAGE, NOTHING, rows, [])
    assert would_trip(None, NOTHING, rows, [])


def test_without_limits_nothing_else_is_known_to_trip():
    assert not would_trip(None, NOTHING, ramp(1e6, -1e5, 9), [])


def test_a_step_that_is_too_large():
    for step, trips in ((0.25, False), (0.26, True)):
        assert would_trip(CAGE, NOTHING, ramp(-0.5, step, 3), []) == trips
        # from what was commanded before, too
        assert would_trip(CAGE, ramp(0.5 - step, 0, 1), ramp(0.5, 0, 3), []) == trips


def test_a_place_beyond_the_limits():
    assert would_trip(CAGE, NOTHING, ramp(1.01, 0.0, 1), [])
    assert not would_trip(CAGE, NOTHING, ramp(1.0, 0.0, 1), [])


def test_one_action_is_enough():
    rows = ramp(0.0, 0.0, 4)
    rows[3, 1] = 0.3
    assert would_trip(CAGE, NOTHING, rows, [])


def test_velocity_is_bounded_too():
    assert would_trip(slow(max_velocity=1.0), NOTHING, line(0, 0.11), [])
    assert not would_trip(slow(max_velocity=1.0), NOTHING, line(0, 0.1), [])


def test_acceleration_is_seen_from_how_fast_the_robot_was():
    # 0.1 more or less in a step than in the step before
    cage = slow(max_acceleration=10.0)
    fast = line(-0.3, 0.0)
    assert not would_trip(cage, fast, line(0.4, 0.9), [])
    assert would_trip(cage, fast, line(0.45, 0.9), [])
    assert would_trip(cage, line(0, 0), line(0.2), [])
    assert not would_trip(cage, line(0, 0), line(0.1, 0.3), [])


def test_where_it_is_not_known_how_fast_it_was_it_was_as_fast_as_it_begins():
    cage = slow(max_acceleration=10.0)
    for before in (NOTHING, line(-0.4)):
        assert not would_trip(cage, before, line(0, 0.4, 0.8), [])
        assert would_trip(cage, before, line(0, 0.4, 0.95), [])
    # a single row is not motion
    assert not would_trip(cage, NOTHING, line(50.0), [])


def test_it_must_be_able_to_stop_before_its_limit():
    cage = slow(max_acceleration=10.0, high=1.0)
    assert would_trip(cage, line(-0.8, -0.4), line(0.0, 0.4, 0.8), [])
    assert not would_trip(cage, line(-0.8, -0.4), line(0.0, 0.3, 0.5), [])


def test_behind_a_gap_it_begins_anew():
    rows = np.concatenate((ramp(0.0, 0.1, 3), ramp(0.9, -0.1, 3)))
    assert would_trip(CAGE, NOTHING, rows, [])
    assert not would_trip(CAGE, NOTHING, rows, [3])
    assert would_trip(CAGE, NOTHING, rows, [2])


def test_rounding_on_the_way_is_no_reason():
    limits = MotionLimits((ActionLimit('p', 'p', Motion.POSITION, 0.0, 0.7, 0.1),), STEP_S)
    rows = line(*[0.1 * n for n in range(8)])
    # float32 knows neither 0.1 nor 0.7
    assert not would_trip(RemoteCage(limits), line(0.0), rows, [])


@pytest.mark.parametrize('before', [np.zeros((2, 5)), np.full((2, 2), nan)])
def test_what_came_before_and_cannot_be_is_not_looked_at(before):
    assert not would_trip(CAGE, before.astype(np.float32), ramp(0.9, 0.0, 2), [])


def largest_change(actions: tuple, before: np.ndarray, rows: np.ndarray, steps: int) -> float:
    """
    Bring the rows through a real cage, interpolated as an edge does it; return by how much it
    changed the first command that it changed.
    """
    step_s = STEP_S / steps
    cage = Cage(actions, (), (), step_s=step_s, latch_after_trips=0)
    interpolator, last = Interpolator(steps), None
    for number, row in enumerate((*before, *rows)):
        interpolator.feed(row.astype(np.float64))
        while not interpolator.needs_action:
            wanted = interpolator.take()
            last = last or LastCommand(wanted, np.zeros(len(wanted)))
            judgement = cage.judge(wanted, last, measured=None, state=None)
            if number >= len(before) and judgement.verdict is not Verdict.PASS:
                return float(np.abs(judgement.command - wanted).max())
            last = last.after(wanted, step_s)
    return 0.0


@st.composite
def journeys(draw: st.DrawFn, actions: tuple[ActionLimit, ...]) -> np.ndarray:
    """Return rows somewhere within the limits, more or less far from each other."""
    middle = [(a.low + a.high) / 2 if isfinite(a.low) else 0.0 for a in actions]
    shape = draw(st.integers(3, 6)), len(actions)
    moves = draw(arrays.arrays(np.float32, shape, elements=st.floats(-1.5, 1.5, width=16)))
    scale = draw(st.sampled_from([1.0, 0.1, 0.01, 0.001, 0.0001]))
    return (np.array(middle) + scale * moves).astype(np.float32)


@given(st.data())
@settings(max_examples=80)
def test_a_real_cage_would_have_said_the_same(data):
    actions, steps = data.draw(robots(lead=False)), data.draw(st.integers(1, 3))
    rows = data.draw(journeys(actions))
    change = largest_change(actions, rows[:2], rows[2:], steps)
    # what is changed by less than float32 can tell may be seen or not
    assume(not 0 < change < 1e-5)
    far = RemoteCage(MotionLimits(actions, STEP_S / steps), steps)
    assert would_trip(far, rows[:2], rows[2:], []) == (change > 0)


# what a robot tells


def test_a_robot_tells_its_limits():
    cages = RemoteCages(9)
    assert cages.update_limits(ask()) == ''
    cage = cages.of('robot_1', 2)
    assert (cage.limits.names, cage.steps_a_row) == (NAMES, 1)
    assert cages.of('robot_2', 2) is None
    assert cages.of('robot_1', 3) is None


@pytest.mark.parametrize(('fps', 'step_s', 'steps'), [(30.0, 1 / 30, 1), (30.0, 1 / 120, 4)])
def test_a_robot_may_be_commanded_more_often_than_its_policy_acts(fps, step_s, steps):
    rounded = float(np.float32(fps))
    assert make_remote_cage(MotionLimits(LIMITS, step_s), NAMES, rounded).steps_a_row == steps


USELESS = {
    'noise': ({'limits': b'\xff'}, 'not JSON'),
    'other names': ({'names': NAMES[::-1]}, 'actions are'),
    'a step longer than a row': ({'fps': 2 * FPS}, 'must be a part of a row'),
    'far too many steps': ({'fps': 1e-3}, 'must be a part of a row'),
    'no rate': ({'fps': 0.0}, 'must be a part of a row'),
    'a rate of NaN': ({'fps': nan}, 'must be a part of a row'),
    'an endless rate': ({'fps': inf}, 'must be a part of a row'),
    'a rate below all others': ({'fps': 5e-324}, 'must be a part of a row'),
}


@pytest.mark.parametrize(('asked', 'words'), USELESS.values(), ids=USELESS)
def test_limits_that_cannot_be_used_are_told_and_forgotten(asked, words):
    cages = RemoteCages(9)
    cages.update_limits(ask())
    assert words in cages.update_limits(ask(**asked))
    assert cages.of('robot_1', 2) is None


def test_who_tells_no_limits_has_none_that_are_known():
    cages = RemoteCages(9)
    cages.update_limits(ask())
    assert cages.update_limits(ask(limits=None)) == ''
    assert cages.of('robot_1', 2) is None


def test_of_too_many_robots_the_first_is_forgotten():
    cages = RemoteCages(3)
    for n in range(5):
        cages.update_limits(ask(client_id=f'robot_{n}'))
    assert len(cages) == 3
    assert [n for n in range(5) if cages.of(f'robot_{n}', 2)] == [2, 3, 4]


def test_the_limits_may_come_back_as_they_were_sent():
    data = encode_limits(LIMITS, 1 / FPS)
    assert RemoteCages(1).update_limits(ask(limits=data)) == ''
