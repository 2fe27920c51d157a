# SPDX-License-Identifier: Apache-2.0
"""What a position may be asked for: the order of the limits, braking, and the way back."""

from __future__ import annotations

from itertools import pairwise
from math import inf

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.cage_rig import (
    action_limits,
    at_rest,
    bounds,
    cage,
    check_step,
    close,
    hard_window,
    judge,
    moderate,
    outside,
    pace,
    robots,
    STEP_S,
    vectors,
    wild,
)

from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion, Verdict
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.edge.control.pose_tracker import StartPosition

positions = action_limits(0, Motion.POSITION)


def joint(low: float = -1.0, high: float = 1.0, max_step: float = 1.0, **limits: float):
    return ActionLimit('joint', 'joint', Motion.POSITION, low, high, max_step, **limits)


def run(limit: ActionLimit, last: LastCommand, wanted, measured=None) -> list[LastCommand]:
    """Return what became of a script of wanted positions."""
    guard, lived = cage((limit,)), [last]
    for value in wanted:
        command = judge(guard, np.array([value]), lived[-1], measured).command
        lived.append(lived[-1].after(command, STEP_S))
    return lived


def steps_to_stop(step: float, brake: float) -> float:
    """Return how far a joint goes in all that brakes as hard as it may, step by step."""
    travel = 0.0
    while step > 0:
        travel += step
        step -= brake
    return travel


@settings(max_examples=300)
@given(
    action_limits(0, Motion.POSITION, lead=False),
    st.floats(0, 1),
    st.lists(moderate | st.sampled_from([np.nan, 1e9, -1e9]), max_size=60),
)
@example(joint(max_acceleration=1.0), 0.5, [9.0] * 200 + [-9.0] * 200)
def test_from_rest_inside_no_script_breaks_the_acceleration(limit, share, script):
    assume(np.isfinite(limit.low))
    here = float(np.clip(limit.low + share * (limit.high - limit.low), limit.low, limit.high))
    lived = run(limit, at_rest(here), script)
    change = limit.max_acceleration * STEP_S
    for before, after in pairwise(lived):
        jump = abs(after.velocity[0] - before.velocity[0])
        assert jump <= change * (1 + 1e-6) + close(here) / STEP_S


@given(st.floats(0.001, 1), st.floats(0.01, 1), st.floats(1e-3, 0.2), st.sampled_from([-1.0, 1.0]))
def test_a_joint_is_as_fast_as_it_can_still_stop_and_not_slower(room, step, brake, side):
    limit = joint(-room, room, 10.0, max_acceleration=brake / STEP_S**2)
    # at such a speed that the acceleration alone would allow this step
    last = LastCommand(np.zeros(1), np.array([side * step / STEP_S]))
    assume(steps_to_stop(step - brake, brake) < room)
    command = side * judge(cage((limit,)), np.array([side * step]), last).command[0]
    if steps_to_stop(step, brake) <= room * (1 - 1e-6):
        assert command == step
    else:
        assert steps_to_stop(command, brake) == pytest.approx(room, rel=1e-6)


share = st.floats(-1, 1)


@settings(max_examples=300)
@given(positions, share, share, share, share)
def test_what_no_limit_forbids_is_not_changed(limit, place, ahead, speed, wish):
    lowest, highest = np.clip((limit.low, limit.high), -5, 5)
    here = float(np.clip(lowest + (place + 1) / 2 * (highest - lowest), lowest, highest))
    measured = here + ahead * min(limit.max_lead, 1.0) * 0.999
    brake = limit.max_acceleration * STEP_S**2
    velocity = speed * min(pace(limit), 2 * brake) / STEP_S
    low, high = hard_window(limit, here, measured)
    straight_on = here + velocity * STEP_S
    low, high = max(low, straight_on - brake), min(high, straight_on + brake)
    assume(low <= high)
    wanted = float(np.clip(low + (wish + 1) / 2 * (high - low), low, high))
    room = limit.high - here if wanted > here else here - limit.low
    assume(brake == inf or steps_to_stop(abs(wanted - here), brake) <= room * (1 - 1e-6))
    last = LastCommand(np.array([here]), np.array([velocity]))
    judgement = judge(cage((limit,)), np.array([wanted]), last, np.array([measured]))
    assert (judgement.verdict, judgement.reason) == (Verdict.PASS, '')


@settings(max_examples=300)
@given(positions, st.floats(-1e3, 1e3), st.floats(-1e3, 1e3), moderate)
def test_a_joint_outside_is_led_back_at_its_pace_whatever_is_wanted(limit, here, wanted, measured):
    limit = joint(limit.low, limit.high, limit.max_step, max_velocity=limit.max_velocity)
    distance = outside(limit.low, limit.high, here)
    assume(distance > 0)
    command = run(limit, at_rest(here), [wanted])[-1].position[0]
    left = outside(limit.low, limit.high, command)
    assert left < distance
    assert left == pytest.approx(max(0, distance - pace(limit)), abs=1e-6)


@given(action_limits(0, Motion.POSITION, lead=False), st.floats(-9, 9), st.data())
def test_a_joint_outside_comes_back_smoothly_and_settles_inside(limit, here, data):
    assume(np.isfinite(limit.low))
    wanted = data.draw(st.floats(limit.low, limit.high))
    limit = joint(limit.low, limit.high, max_step=0.5, max_acceleration=200.0)
    lived = run(limit, at_rest(here), [wanted] * 300)
    for before, after in pairwise(lived):
        assert outside(limit.low, limit.high, after.position[0]) <= outside(
            limit.low, limit.high, before.position[0]
        )
        check_step(limit, before.position[0], before.velocity[0], after.position[0], None)
    assert outside(limit.low, limit.high, lived[-1].position[0]) == 0


def test_a_joint_that_is_driven_into_its_limit_arrives_there_at_rest():
    lived = run(joint(max_step=0.1, max_acceleration=5.0), at_rest(0.0), [9.0] * 200)
    assert lived[-1].position[0] == pytest.approx(1.0)
    assert lived[-1].velocity[0] == pytest.approx(0.0, abs=1e-6)
    assert max(last.velocity[0] for last in lived) > 1.5


def test_a_joint_that_can_no_longer_stop_stops_dead_at_its_limit():
    lived = run(
        joint(max_acceleration=1.0), LastCommand(np.array([0.9]), np.array([4.0])), [9.0] * 3
    )
    assert [last.position[0] for last in lived] == pytest.approx([0.9, 0.9796, 1.0, 1.0])
    assert lived[-1].position[0] == 1.0


def test_a_joint_outside_that_moves_out_stops_and_then_comes_back():
    limit = joint(max_step=0.1, max_acceleration=50.0)
    lived = run(limit, LastCommand(np.array([1.2]), np.array([3.0])), [9.0] * 4)
    assert [last.position[0] for last in lived] == pytest.approx([1.2, 1.2, 1.18, 1.14, 1.08])


@settings(max_examples=200)
@given(positions, st.lists(st.tuples(moderate, moderate), min_size=1, max_size=30), moderate)
def test_a_blocked_joint_is_commanded_no_further_than_its_lead(limit, script, measured):
    guard, last = cage((limit,)), at_rest(measured)
    for wanted, drift in script:
        measured += 0.01 * drift
        before = outside(measured - limit.max_lead, measured + limit.max_lead, last.position[0])
        command = judge(guard, np.array([wanted]), last, np.array([measured])).command
        after = outside(measured - limit.max_lead, measured + limit.max_lead, command[0])
        assert after <= before
        last = last.after(command, STEP_S)


def test_a_joint_that_was_pushed_away_is_followed_at_its_pace():
    limit = joint(max_step=0.1, max_lead=0.2)
    lived = run(limit, at_rest(0.5), [0.9] * 5, measured=np.array([-0.1]))
    assert [last.position[0] for last in lived] == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1, 0.1])


def test_a_lead_is_kept_though_the_acceleration_is_not():
    limit = joint(max_acceleration=1.0, max_lead=0.2)
    last = LastCommand(np.array([0.15]), np.array([5.0]))
    assert run(limit, last, [0.9], measured=np.zeros(1))[-1].position[0] == pytest.approx(0.2)


@pytest.mark.parametrize('value', [np.nan, inf])
@given(positions, st.floats(-9, 9), st.floats(-9, 9))
def test_what_is_at_rest_is_not_moved_by_what_is_not_finite(value, limit, here, measured):
    (_, last) = run(limit, at_rest(here), [value], measured=np.array([measured]))
    assert last.position[0] == here


@given(positions, moderate, st.floats(-50, 50), st.lists(wild(1), min_size=1, max_size=3))
def test_permanent_nonsense_brings_every_joint_to_rest(limit, here, velocity, script):
    limit = joint(limit.low, limit.high, limit.max_step, max_acceleration=100.0)
    lived = run(limit, LastCommand(np.array([here]), np.array([velocity])), [np.nan] * 40)
    assert lived[-1].velocity[0] == 0
    assert lived[-1].position[0] == lived[-2].position[0]


def test_what_was_planned_up_to_a_limit_is_not_clamped_for_its_rounding():
    limit = joint(-100.0, 100.0, 0.1, max_velocity=4.9, max_acceleration=3.3)
    change, here, step, last = 3.3 * STEP_S**2, 0.7, 0.0, at_rest(0.7)
    guard = cage((limit,))
    for _ in range(60):
        step = min(step + change, 4.9 * STEP_S, 0.1)
        here += step
        judgement = judge(guard, np.array([here]), last)
        assert judgement.verdict == Verdict.PASS
        last = last.after(judgement.command, STEP_S)


# actions that are velocities: to hold one would be to drive on, so what is held comes to rest


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


# where a robot is taken to stand before its first command, and that a misread place is none


ARM = (
    ActionLimit('pan.pos', 'pan', Motion.POSITION, -1.8, 1.8, 0.06, max_lead=0.5),
    ActionLimit('roll.pos', 'roll', Motion.POSITION, -inf, inf, 0.06),
)
WHEEL = ActionLimit('drive', 'drive', Motion.VELOCITY, -1.0, 1.0, 0.1)


def start(*actions: ActionLimit, samples: int = 3, tolerance_share: float = 0.05) -> StartPosition:
    return StartPosition(
        MotionLimits(actions or ARM, STEP_S), samples=samples, tolerance_share=tolerance_share
    )


def after(*places: list[float] | None, **more: float) -> StartPosition:
    made = start(**more)
    for place in places:
        made.add_sample(None if place is None else np.array(place))
    return made


HERE, AWAY = [0.5, 9.0], [6.28, 9.0]


@pytest.mark.parametrize(
    ('places', 'missing'),
    [
        ([], 3),
        ([HERE], 2),
        ([HERE, HERE], 1),
        ([HERE, HERE, HERE], 0),
        # one misread sample, first, between and last
        ([AWAY, HERE, HERE], 1),
        ([AWAY, HERE, HERE, HERE], 0),
        ([HERE, HERE, AWAY, HERE], 2),
        ([HERE, HERE, HERE, AWAY], 3),
        ([HERE, HERE, HERE, None], 3),
        ([HERE, HERE, HERE, [np.nan, 9.0]], 3),
        # as far as noise and a hand may move it between two samples
        ([[0.5, 9.0], [0.57, 9.0], [0.5, 9.0]], 0),
        ([[0.5, 9.0], [0.58, 9.0], [0.5, 9.0]], 2),
    ],
)
def test_several_samples_have_to_agree(places, missing):
    made = after(*places)
    needed = 0
    while made.blocked_reason():
        assert made.start_command() is None
        made.add_sample(np.array(HERE))
        needed += 1
    assert made.start_command().position.tolist() == HERE
    assert needed == missing


NOT_YET = 'waiting for 3 consistent samples'


@pytest.mark.parametrize(
    ('places', 'why'),
    [
        ([], 'position unknown: no measured state'),
        ([HERE, None], 'position unknown: no measured state'),
        ([HERE], NOT_YET),
        ([HERE, HERE], NOT_YET),
        ([HERE, AWAY], f'{NOT_YET}; pan.pos changed by more than 0.072'),
        # the same reason step after step, which is what gets into the log
        ([HERE, AWAY, AWAY], f'{NOT_YET}; pan.pos changed by more than 0.072'),
    ],
)
def test_it_says_what_keeps_it_from_a_start(places, why):
    assert after(*places).blocked_reason() == why


def test_it_begins_at_the_newest_sample_and_at_rest():
    last = after([0.5, 9.0], [0.51, 9.0], [0.52, 9.01]).start_command()
    assert last.position.tolist() == [0.52, 9.01]
    assert not last.velocity.any()


@pytest.mark.parametrize(('place', 'begins'), [(1.97, True), (1.99, False), (-1.97, True)])
def test_a_little_outside_its_limits_it_may_stand(place, begins):
    made = after(*[[place, 0.0]] * 3)
    assert (made.blocked_reason() == '') == begins


def test_a_sensor_that_misreads_all_the_time_says_what_to_do():
    why = after(*[AWAY] * 9).blocked_reason()
    assert why.startswith('pan.pos is measured at 6.28, its limits are -1.8 to 1.8')
    assert 'start_tolerance' in why
    assert after(*[AWAY] * 9, tolerance_share=10.0).blocked_reason() == ''


def test_velocities_begin_at_rest_whatever_is_measured():
    made = start(WHEEL)
    assert made.blocked_reason() == ''
    assert made.start_command().position.tolist() == [0.0]


@pytest.mark.parametrize(('samples', 'share'), [(0, 0.1), (3, -0.1), (3, np.nan)])
def test_what_makes_no_sense_is_refused(samples, share):
    with pytest.raises(ValueError, match='samples must be'):
        start(samples=samples, tolerance_share=share)
