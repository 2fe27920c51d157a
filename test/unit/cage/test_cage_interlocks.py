# SPDX-License-Identifier: Apache-2.0
"""Interlocks: what a state forces, and that who does not know the state does not move."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest
from support.edge.cage_rig import at_rest, cage, judge, moderate, wild

from lerobot_serve.cage.description import ActionLimit, Interlock, Motion, Verdict

POSITION = Motion.POSITION
DRONE = (
    ActionLimit('throttle', 'throttle', POSITION, 0.0, 0.9, 0.25),
    ActionLimit('pitch', 'pitch', POSITION, -0.5, 0.5, 0.2),
    ActionLimit('yaw', 'yaw', POSITION, -3.0, 3.0, 0.5),
)
STATES = ('altitude', 'battery')
# below a minimum altitude: full throttle and level pitch
LOW = Interlock('low', 'altitude', 2.0, None, {'throttle': 1.0, 'pitch': 0.0})
HIGH = Interlock('high', 'altitude', None, 100.0, {'throttle': 0.0})
EMPTY = Interlock('empty', 'battery', 0.1, None, {'throttle': 0.3})
CRUISE = np.array([0.5, 0.4, 0.0])
WANTED = np.array([0.5, 0.4, 0.1])


def fly(altitude, battery=1.0, wanted=WANTED, interlocks=(LOW, HIGH, EMPTY), last=None, **options):
    guard = cage(DRONE, interlocks, STATES, **options)
    state = np.array([altitude, battery], np.float32)
    return judge(guard, wanted, last or at_rest(*CRUISE), state=state)


def test_below_its_bound_it_forces_within_the_limits():
    judgement = fly(1.9)
    assert judgement.command == pytest.approx([0.75, 0.2, 0.1])
    assert judgement.verdict == Verdict.CLAMPED
    assert (judgement.reason, judgement.cause) == ('low overrides throttle', 'interlock')
    judgement = fly(1.9, last=at_rest(0.8, 0.1, 0.0))
    # full is what the limit allows of it
    assert judgement.command == pytest.approx([0.9, 0.0, 0.1])


@pytest.mark.parametrize(
    ('altitude', 'throttle'), [(100.1, 0.25), (100.0, 0.5), (2.0, 0.5), (1.999, 0.75)]
)
def test_a_bound_itself_is_allowed(altitude, throttle):
    assert fly(altitude).command[0] == pytest.approx(throttle)


def test_between_its_bounds_nothing_is_forced():
    assert fly(50.0).verdict == Verdict.PASS
    band = Interlock('band', 'altitude', 40.0, 60.0, {'yaw': -1.0})
    forced = [fly(altitude, interlocks=(band,)).command[2] for altitude in (39, 50, 61)]
    assert forced == pytest.approx([-0.5, 0.1, -0.5])


def test_of_two_the_later_in_the_file_wins():
    assert fly(1.0, battery=0.05).command[0] == pytest.approx(0.3)
    assert fly(1.0, battery=0.05, interlocks=(EMPTY, LOW)).command[0] == pytest.approx(0.75)
    # and what only the earlier forces stays forced
    assert fly(1.0, battery=0.05).command[1] == pytest.approx(0.2)


def test_what_is_wanted_anyway_passes():
    wanted = np.array([1.0, 0.0, 0.0])
    judgement = fly(1.0, wanted=wanted, last=at_rest(0.8, 0.0, 0.0))
    assert (judgement.verdict, judgement.reason) == (Verdict.CLAMPED, 'throttle: limit')
    lower = Interlock('low', 'altitude', 2.0, None, {'throttle': 0.6})
    wanted = np.array([0.6, 0.4, 0.0])
    assert fly(1.0, wanted=wanted, interlocks=(lower,)).verdict == Verdict.PASS


def test_a_policy_that_fails_does_not_take_the_reflex_away():
    judgement = fly(1.0, wanted=WANTED * np.nan)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command == pytest.approx([0.75, 0.2, 0.0])


@pytest.mark.parametrize('unknown', [np.nan, np.inf, -np.inf])
def test_without_its_state_nothing_moves_on(unknown):
    judgement = fly(unknown)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command.tobytes() == CRUISE.tobytes()
    assert (judgement.reason, judgement.cause) == ('low: altitude unknown', 'state_unknown')


def test_an_unknown_state_silences_only_those_that_need_it():
    judgement = fly(np.nan, battery=0.05)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command == pytest.approx([0.3, 0.4, 0.0])
    assert fly(50.0, battery=np.nan, interlocks=(LOW, HIGH)).verdict == Verdict.PASS


def test_held_even_when_what_is_wanted_is_to_stay():
    assert fly(np.nan, wanted=CRUISE).verdict == Verdict.HELD


@given(
    wild(2).filter(lambda s: not (isinstance(s, np.ndarray) and s.dtype.kind in 'fiu'))
    | arrays.arrays(np.float64, st.sampled_from([0, 1, 3, (2, 1), (1, 2)]), elements=moderate)
)
def test_a_state_that_is_none_holds(state):
    judgement = judge(cage(DRONE, (LOW,), STATES), WANTED, at_rest(*CRUISE), state=state)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command.tobytes() == CRUISE.tobytes()
    assert judge(cage(DRONE), WANTED, at_rest(*CRUISE), state=state).verdict == Verdict.PASS


def test_a_latched_cage_goes_on_to_force():
    guard = cage(DRONE, (LOW,), STATES, latch_after_trips=1)
    low, fine = np.array([1.0, 1.0]), np.array([50.0, 1.0])
    judge(guard, WANTED * np.nan, at_rest(*CRUISE), state=fine)
    assert guard.latched
    last = at_rest(*CRUISE)
    for _ in range(9):
        judgement = judge(guard, WANTED, last, state=low)
        assert judgement.verdict == Verdict.STOPPED
        assert judgement.reason.startswith('low overrides its actions; latched')
        last = last.after(judgement.command, 0.02)
    # as an open one would, and nothing else moves
    assert last.position == pytest.approx([0.9, 0.0, 0.0])
    judgement = judge(guard, WANTED, last, state=fine)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)


def test_an_interlock_that_forces_for_ever_does_not_close_the_latch():
    guard = cage(DRONE, (LOW,), STATES, latch_after_trips=3)
    low = np.array([1.0, 1.0])
    for _ in range(20):
        assert judge(guard, WANTED, at_rest(*CRUISE), state=low).cause == 'interlock'
    assert not guard.latched


@pytest.mark.parametrize('wanted', [None, 'up', np.zeros(7)])
def test_what_is_no_action_does_not_take_the_reflex_away(wanted):
    judgement = fly(1.0, wanted=wanted)
    assert (judgement.verdict, judgement.cause) == (Verdict.HELD, 'not_an_action')
    assert judgement.command == pytest.approx([0.75, 0.2, 0.0])


BRAKE = ActionLimit('drive', 'drive', Motion.VELOCITY, -2.0, 2.0, 0.1, 1.5, 1.0)
REACH = ActionLimit('reach', 'reach', Motion.POSITION, -1.0, 1.0, 0.01, 5.0, 1.0)


@pytest.mark.parametrize(
    ('forced', 'last', 'expected'),
    [
        # at once, which max_step and max_acceleration would spread over seconds
        ({'drive': 0.0}, (1.5, 0.0), (0.0, 0.0)),
        # within position and velocity still
        ({'drive': -9.0}, (1.5, 0.0), (-1.5, 0.0)),
        ({'reach': 0.05}, (0.0, 0.0), (0.0, 0.05)),
        ({'reach': 0.9}, (0.0, 0.0), (0.0, 0.1)),
        ({'reach': 3.0}, (0.0, 0.98), (0.0, 1.0)),
        # outside already: no further out
        ({'reach': 3.0}, (0.0, 1.2), (0.0, 1.2)),
    ],
)
def test_an_immediate_interlock_is_bounded_in_position_and_velocity_alone(forced, last, expected):
    slow = Interlock('now', 'near', 0.5, None, forced)
    fast = replace(slow, immediate=True)
    near, here = np.array([0.1]), at_rest(*last)
    wanted = here.position
    commands = [
        judge(cage((BRAKE, REACH), (one,), ('near',)), wanted, here, state=near).command
        for one in (slow, fast)
    ]
    assert commands[1] == pytest.approx(np.array(expected))
    # what is not immediate is a step at most
    assert (abs(commands[0] - wanted) <= np.array([0.02, 0.01]) * (1 + 1e-6)).all()


def test_of_two_that_force_one_action_the_later_decides_whether_at_once():
    fast = Interlock('fast', 'near', 0.5, None, {'drive': 0.0}, immediate=True)
    slow = Interlock('slow', 'near', 0.5, None, {'drive': 1.4})
    guard = cage((BRAKE, REACH), (fast, slow), ('near',))
    here = at_rest(1.5, 0.0)
    command = judge(guard, here.position, here, state=np.array([0.1])).command
    assert command[0] == pytest.approx(1.48)


@pytest.mark.parametrize(
    ('interlock', 'said'),
    [
        (Interlock('a', 'depth', 1.0, None, {'yaw': 0.0}), "no state 'depth'"),
        (Interlock('a', 'altitude', None, None, {'yaw': 0.0}), 'needs below or above'),
        (Interlock('a', 'altitude', np.nan, None, {'yaw': 0.0}), 'needs below or above'),
        (Interlock('a', 'altitude', 3.0, 2.0, {'yaw': 0.0}), 'with below <= above'),
        (Interlock('a', 'altitude', 1.0, None, {}), 'must force some of'),
        (Interlock('a', 'altitude', 1.0, None, {'roll': 0.0}), "'roll'"),
        (Interlock('a', 'altitude', 1.0, None, {'yaw': np.inf}), 'values must be finite'),
    ],
)
def test_an_interlock_that_could_not_be_followed_is_refused(interlock, said):
    with pytest.raises(ValueError, match=said):
        cage(DRONE, (interlock,), STATES)
