# SPDX-License-Identifier: Apache-2.0
"""Actions that are velocities: to hold one would be to drive on, so what is held comes to rest."""

from __future__ import annotations

from math import inf

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.cage_rig import (
    at_rest,
    bounds,
    cage,
    judge,
    moderate,
    pace,
    robots,
    STEP_S,
    vectors,
    wild,
)

from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.result import LastCommand, Verdict

BASE = (
    ActionLimit('linear.x', 'x', Motion.VELOCITY, -0.5, 0.5, 0.1, max_acceleration=2.0),
    ActionLimit('angular.z', 'z', Motion.VELOCITY, -3.0, 3.0, 0.1, max_velocity=1.0),
)
MIXED = (*BASE, ActionLimit('lift.pos', 'lift', Motion.POSITION, -1.0, 1.0, 0.1))
FAST = np.array([0.2, -0.25])


def play(guard, last: LastCommand, wanted, steps: int, measured=None) -> list[np.ndarray]:
    commands = []
    for _ in range(steps):
        commands.append(judge(guard, wanted, last, measured).command)
        last = last.after(commands[-1], STEP_S)
    return commands


@settings(max_examples=200)
@given(st.data())
def test_under_permanent_nonsense_every_velocity_comes_to_rest(data):
    actions = data.draw(robots(Motion.VELOCITY))
    fastest = [np.clip(bounds(limit), -1, 1) for limit in actions]
    last = at_rest(*(data.draw(st.floats(*both)) for both in fastest))
    guard = cage(actions)
    broken = data.draw(wild(len(actions)))
    if isinstance(broken, np.ndarray) and broken.dtype.kind in 'fiu':
        broken = np.full(len(actions), np.nan)
    steps = [int(np.ceil(abs(v) / pace(a))) for v, a in zip(last.position, actions, strict=True)]
    for _ in range(min(max(steps), 300)):
        before, judgement = last, judge(guard, broken, last)
        assert judgement.verdict in (Verdict.HELD, Verdict.STOPPED)
        assert (np.abs(judgement.command) <= np.abs(before.position)).all()
        last = last.after(judgement.command, STEP_S)
    for index, count in enumerate(steps):
        assert count > 300 or last.position[index] == 0


def test_a_velocity_that_is_held_slows_down_within_its_acceleration():
    commands = play(cage(BASE), at_rest(*FAST), FAST * np.nan, 6)
    assert [c[0] for c in commands] == pytest.approx([0.16, 0.12, 0.08, 0.04, 0, 0])
    assert [c[1] for c in commands] == pytest.approx([-0.15, -0.05, 0, 0, 0, 0])
    assert not commands[-1].any()


def test_a_velocity_is_bounded_itself_and_has_no_position():
    judgement = judge(cage(BASE), np.array([9.0, 9.0]), at_rest(0.49, 0.95))
    assert judgement.command == pytest.approx([0.5, 1.0])
    assert judgement.reason == 'linear.x: limit'
    # were it a position, this would be far ahead of the measured one, and much too fast
    last, wild_place = LastCommand(FAST, np.array([1e9, -1e9])), np.array([1e6, np.nan])
    limits = tuple(
        ActionLimit(a.name, a.joint, a.motion, a.low, a.high, a.max_step, max_lead=0.1)
        for a in BASE
    )
    judgement = judge(cage(limits), FAST, last, wild_place)
    assert judgement.verdict == Verdict.PASS


@pytest.mark.parametrize(
    ('wanted', 'reason'),
    [([0.25, -0.25], 'linear.x: max_acceleration'), ([0.2, -0.4], 'angular.z: max_step')],
)
def test_the_reason_names_what_bounds_the_change_of_a_velocity(wanted, reason):
    assert judge(cage(BASE), np.array(wanted), at_rest(*FAST)).reason == reason


@pytest.mark.parametrize('measured', [None, np.full(2, np.nan), np.zeros(7), np.array([5.0, 5.0])])
def test_a_first_velocity_is_bounded_from_rest_whatever_is_measured(measured):
    judgement = judge(cage(BASE), np.array([0.5, 0.5]), None, measured)
    assert judgement.command == pytest.approx([0.04, 0.1])


def test_beside_positions_a_first_velocity_needs_only_those_measured():
    measured = np.array([np.nan, 7.0, 0.5])
    begun = cage(MIXED).limits.start(measured)
    judgement = judge(cage(MIXED), np.array([0.5, 0.5, 0.5]), begun, measured)
    assert judgement.command == pytest.approx([0.04, 0.1, 0.5])
    assert cage(MIXED).limits.start(measured[::-1] * np.nan) is None


def test_what_has_no_zero_comes_to_rest_as_near_to_it_as_it_may():
    pump = ActionLimit('pump', 'pump', Motion.VELOCITY, 0.2, 1.0, 0.5)
    commands = play(cage((pump,)), at_rest(1.0), np.array([np.nan]), 3)
    assert [float(c[0]) for c in commands] == pytest.approx([0.5, 0.2, 0.2])
    assert cage((pump,)).limits.start(None).position == 0.2


def test_stopped_a_velocity_is_told_to_slow_down_and_a_position_to_stay():
    commands = play(cage(MIXED), at_rest(*FAST, 0.5), 'not an action', 6)
    assert [c[0] for c in commands] == pytest.approx([0.16, 0.12, 0.08, 0.04, 0, 0])
    assert [c[2] for c in commands] == [0.5] * 6


def test_latched_it_comes_to_rest_and_is_told_so_again_and_again():
    guard = cage(BASE, latch_after_trips=1)
    judge(guard, FAST * np.nan, at_rest(*FAST))
    commands = play(guard, at_rest(*FAST), FAST, 8)
    assert commands[0] == pytest.approx([0.16, -0.15])
    assert not any(command.any() for command in commands[5:])
    assert guard.trips['latched'] == 8


@pytest.mark.parametrize(
    ('actions', 'last', 'command'),
    [
        (BASE, at_rest(*FAST), [0, 0]),
        (MIXED, at_rest(*FAST, 0.5), [0, 0, 0.5]),
        (BASE, None, [0, 0]),
        (BASE, at_rest(np.nan, 0.0), [0, 0]),
        (MIXED, None, None),
        (MIXED, at_rest(*FAST, np.inf), None),
    ],
)
def test_when_the_limits_fail_velocities_are_zero_at_once(monkeypatch, actions, last, command):
    def fail(*arguments, **options):
        raise ZeroDivisionError('a mistake of ours')

    guard = cage(actions)
    monkeypatch.setattr(MotionLimits, 'nearest', fail)
    judgement = judge(guard, np.zeros(len(actions)), last)
    assert judgement.verdict == Verdict.STOPPED
    assert (judgement.command is None) == (command is None)
    assert command is None or judgement.command.tolist() == command


@given(vectors(2, moderate), st.lists(vectors(2, moderate), max_size=20))
def test_outside_its_limits_a_velocity_is_led_back(start, script):
    guard, last = cage(BASE), at_rest(*start)
    for wanted in script:
        command = judge(guard, wanted, last).command
        for index, limit in enumerate(BASE):
            _, high = bounds(limit)
            allowed = max(high, abs(last.position[index]) - pace(limit))
            assert abs(command[index]) <= allowed + 1e-12
        last = last.after(command, STEP_S)


def test_an_acceleration_without_limit_lets_it_stop_at_once():
    free = ActionLimit('x', 'x', Motion.VELOCITY, -inf, inf, 1e6)
    assert play(cage((free,)), at_rest(1e5), np.array([np.nan]), 1)[0] == 0


def test_the_last_command_of_all_leaves_velocities_at_rest():
    assert cage(MIXED).rest(at_rest(*FAST, 0.7)).tolist() == [0.0, 0.0, 0.7]
    assert cage(MIXED).rest(None) is None
    # positions stay where they are without being told
    assert cage(MIXED[2:]).rest(at_rest(0.7)) is None
