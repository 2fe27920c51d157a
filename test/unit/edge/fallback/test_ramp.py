# SPDX-License-Identifier: Apache-2.0
"""Coming to rest: bounded, without turning back, and in the time given."""

from __future__ import annotations

from dataclasses import replace
import itertools
from math import inf

from hypothesis import assume, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.ramp_rig import ARM, begin, FREE, near, rates, SPEEDS, WHEEL

from lerobot_serve.cage import cage as cage_module
from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion, Verdict
from lerobot_serve.edge.control.rungs import (
    max_stoppable_speed,
    Ramp,
    SLOW_SHARE,
    stop_profile,
    stop_time_s,
    top_deceleration,
    top_speed,
    travel_time_s,
)


@st.composite
def joints(draw):
    motion = draw(st.sampled_from(Motion))
    low, high = sorted((draw(st.floats(-3, 0)), draw(st.floats(0.1, 3))))
    return ActionLimit(
        'joint',
        'joint',
        motion,
        low if motion is Motion.VELOCITY else -1e5,
        high if motion is Motion.VELOCITY else 1e5,
        draw(st.floats(0.001, 1)),
        draw(st.floats(0.01, 5) | st.just(inf)),
        draw(st.floats(0.1, 50) | st.just(inf)),
    )


def speed_of(last: LastCommand, limit: ActionLimit) -> float:
    moving = last.position if limit.motion is Motion.VELOCITY else last.velocity
    return float(moving[0])


def stop(ramp: Ramp, last: LastCommand, step_s: float, steps: int) -> list[LastCommand]:
    path = [last]
    for _ in range(steps):
        path.append(path[-1].after(ramp.stop(path[-1]), step_s))
    return path


@settings(max_examples=150, deadline=None)
@given(joints(), SPEEDS, st.floats(-50, 50), rates, st.floats(0, 0.5))
def test_a_ramp_is_bounded_never_turns_back_and_ends_at_rest(limit, share, at, step_s, more_s):
    needed_s = stop_time_s(limit, step_s)
    assume(needed_s < 3)
    stop_s = needed_s + more_s
    ramp = Ramp((limit,), step_s=step_s, stop_s=stop_s)
    last = begin(limit, share, at, step_s)
    path = stop(ramp, last, step_s, round(stop_s / step_s) + 1)
    speeds = [speed_of(last, limit) for last in path]
    # velocities are found from positions, whose rounding a short step makes large
    noise = abs(at) / step_s
    deceleration, jerk = ramp.deceleration[0], ramp.jerk[0]
    assert deceleration <= near(top_deceleration(limit, step_s))
    before = 0.0
    for earlier, later in itertools.pairwise(speeds):
        assert abs(later) <= near(abs(earlier), noise)
        assert earlier * later >= 0 or abs(later) <= near(0, noise)
        change = abs(earlier) - abs(later)
        assert change <= near(deceleration * step_s, noise)
        assert abs(change - before) <= near(jerk * step_s**2, noise)
        before = change
    assert before <= near(jerk * step_s**2, noise)
    rest = path[-1]
    assert speed_of(rest, limit) == 0.0
    assert (ramp.stop(rest) == rest.position).all()


@given(joints(), rates)
def test_the_hardest_stop_takes_the_steps_it_is_made_for(limit, step_s):
    needed_s = stop_time_s(limit, step_s)
    assume(needed_s < 3)
    steps = round(needed_s / step_s) - 1
    ramp = Ramp((limit,), step_s=step_s, stop_s=needed_s)
    moving = max(abs(limit.low), abs(limit.high))
    sign = 1 if limit.high == moving or limit.motion is Motion.POSITION else -1
    path = stop(ramp, begin(limit, sign, 0.0, step_s), step_s, steps)
    assert abs(speed_of(path[-1], limit)) <= near(0, top_speed(limit, step_s) * 1e4)
    if steps > 1:
        # with one step less the limits would not allow it
        assert stop_profile(limit, steps - 1, step_s)[0] > top_deceleration(limit, step_s)


@given(st.floats(0, 1e3), st.floats(1e-3, 1e4), rates)
def test_the_fastest_is_the_greatest_that_still_fits(left, rate, step_s):
    value = float(max_stoppable_speed(np.array([left]), np.array([rate]), step_s)[0])

    def way(speed: float) -> float:
        steps = int(speed / (rate * step_s)) + 1
        falling = speed - rate * step_s * np.arange(min(steps, 10**6))
        return float(np.maximum(falling, 0).sum() * step_s)

    assume(value / (rate * step_s) < 10**6)
    assert way(value) == pytest.approx(left, rel=1e-6, abs=1e-12)


def test_a_joint_at_rest_stays_where_it_is_to_the_last_bit():
    ramp = Ramp((ARM, FREE, WHEEL), step_s=1 / 30, stop_s=0.5)
    position = np.array([0.1 + 0.2, -7.3, 0.0])
    for make in (ramp.stop, ramp.hold):
        assert make(LastCommand(position, np.zeros(3))).tobytes() == position.tobytes()


def test_backward_comes_to_zero_too_and_not_to_minus_zero():
    path = stop(
        Ramp((WHEEL,), step_s=0.1, stop_s=1.0), LastCommand(np.full(1, -0.5), np.zeros(1)), 0.1, 10
    )
    rest = path[-1].position
    assert rest == 0
    assert not np.signbit(rest)


@given(
    st.lists(st.sampled_from(['stop', 'hold', 'approach']), min_size=32, max_size=32),
    st.floats(0.2, 0.8),
)
def test_brakes_of_velocities_go_on_whichever_rung_has_them_and_those_of_positions_begin_again(
    rungs, speed
):
    step_s, stop_s = 1 / 30, 1.0
    ramp = Ramp((WHEEL, ARM), step_s=step_s, stop_s=stop_s)
    last, braked, was_held = LastCommand(np.array([speed, 0.0]), np.array([0.0, 2.0])), 0.0, False
    for rung in rungs:
        if rung == 'approach':
            command = ramp.approach(last, last.position)
        else:
            command = getattr(ramp, rung)(last)
        change = last.position[0] - command[0]
        assert abs(change - braked) <= near(ramp.jerk[0] * step_s**2)
        if rung == 'stop' and was_held:
            slower = last.velocity[1] - (command[1] - last.position[1]) / step_s
            assert slower <= near(ramp.jerk[1] * step_s**2)
        braked, was_held = change, rung != 'stop'
        # the arm is moved on by others
        last = LastCommand(np.array([command[0], 0.0]), np.array([0.0, 2.0]))
    assert last.position[0] == 0.0


def test_an_example_by_hand():
    # 8 steps, the deceleration grows for 2: v = j t^2 * 2 * 7
    limit = replace(FREE, max_step=1.4)
    assert stop_profile(limit, 8, 1.0) == pytest.approx((0.2, 0.1))
    ramp = Ramp((limit,), step_s=1.0, stop_s=9.0)
    path = stop(ramp, LastCommand(np.zeros(1), np.array([1.4])), 1.0, 8)
    speeds = [float(last.velocity[0]) for last in path]
    assert speeds == pytest.approx([1.4, 1.3, 1.1, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0])


def test_every_joint_has_its_own_brakes():
    limits = (ARM, FREE, WHEEL)
    together = Ramp(limits, step_s=1 / 30, stop_s=1.0)
    last = LastCommand(np.array([1.0, 2.0, 0.7]), np.array([1.5, -3.0, 9.9]))
    paths = stop(together, last, 1 / 30, 40)
    for index, limit in enumerate(limits):
        alone = Ramp((limit,), step_s=1 / 30, stop_s=1.0)
        one = LastCommand(last.position[[index]], last.velocity[[index]])
        for both, only in zip(paths, stop(alone, one, 1 / 30, 40), strict=True):
            assert both.position[index] == only.position[0]


def test_a_ramp_that_begins_anew_begins_without_deceleration():
    ramp = Ramp((FREE,), step_s=0.1, stop_s=2.0)
    last = LastCommand(np.zeros(1), np.ones(1))
    first = ramp.stop(last)
    stop(ramp, last, 0.1, 5)
    assert ramp.stop(last) != first
    ramp.reset()
    assert ramp.stop(last) == first


def test_holding_keeps_positions_and_ramps_velocities():
    ramp = Ramp((ARM, WHEEL), step_s=1 / 30, stop_s=0.5)
    last = LastCommand(np.array([1.0, 0.8]), np.array([2.0, 0.0]))
    speeds = []
    for _ in range(16):
        last = last.after(ramp.hold(last), 1 / 30)
        assert last.position[0] == 1.0
        speeds.append(last.position[1])
    assert speeds == sorted(speeds, reverse=True)
    assert 0.7 < speeds[0] < 0.8
    assert speeds[-1] == 0.0


def test_a_held_back_joint_does_not_shoot_forward_again():
    """The cage may let less through than the ramp wants; the next step starts from there."""
    ramp = Ramp((FREE,), step_s=0.1, stop_s=2.0)
    last = LastCommand(np.zeros(1), np.array([1.0]))
    last = last.after(ramp.stop(last), 0.1)
    held = LastCommand(last.position, np.zeros(1))
    assert ramp.stop(held) == held.position
    turned = LastCommand(last.position, np.array([-0.01]))
    assert -0.001 <= ramp.stop(turned)[0] - last.position[0] <= 0


@settings(max_examples=50, deadline=None)
@given(SPEEDS, SPEEDS, rates)
def test_the_cage_lets_a_ramp_pass_unchanged(of_arm, of_wheel, step_s):
    limits = (replace(ARM, max_step=2.0 * step_s), replace(WHEEL, max_step=4.0 * step_s))
    cage = cage_module.Cage(limits, (), (), step_s=step_s, latch_after_trips=0)
    ramp = Ramp(limits, step_s=step_s, stop_s=1.0)
    last = LastCommand(
        np.array([3.0, np.clip(of_wheel, -0.5, 0.8)]), np.array([2.0 * of_arm, 0.0])
    )
    for _ in range(round(1.0 / step_s) + 1):
        judgement = cage.judge(ramp.stop(last), last, measured=None, state=None)
        assert judgement.verdict == Verdict.PASS, judgement.reason
        last = last.after(judgement.command, step_s)
    assert last.velocity[0] == last.position[1] == 0.0


# how long it takes


def test_without_a_limit_of_acceleration_one_step_and_one_in_hand_are_enough():
    assert stop_time_s(FREE, 0.1) == pytest.approx(0.2)


def test_the_time_grows_with_the_speed_and_shrinks_with_the_brakes():
    slow = replace(ARM, max_velocity=1.0)
    strong = replace(ARM, max_acceleration=16.0)
    assert stop_time_s(slow, 0.01) < stop_time_s(ARM, 0.01) > stop_time_s(strong, 0.01)
    # four thirds of what constant braking needs
    assert stop_time_s(ARM, 0.001) == pytest.approx(4 / 3 * 2.0 / 8.0, rel=0.02)


def test_what_cannot_stop_within_a_minute_never_does():
    assert stop_time_s(replace(ARM, max_acceleration=0.01), 0.01) == inf
    assert stop_time_s(replace(ARM, max_acceleration=1e-6), 25.0) == inf


@pytest.mark.parametrize(
    ('limit', 'speed', 'deceleration'),
    [
        (ARM, 1.0, 8.0),
        (replace(ARM, max_step=0.5), 2.0, 8.0),
        (FREE, 1.0, inf),
        (WHEEL, 0.8, 1.0),
        (replace(WHEEL, low=-0.9), 0.9, 1.0),
        (replace(WHEEL, max_velocity=0.3), 0.3, 1.0),
        (replace(WHEEL, max_step=1.0), 0.8, 4.0),
    ],
)
def test_the_bounds_are_those_of_the_robot_file(limit, speed, deceleration):
    assert top_speed(limit, 0.1) == pytest.approx(speed)
    assert top_deceleration(limit, 0.1) == pytest.approx(deceleration)


@pytest.mark.parametrize('way', ['hold', 'approach'])
def test_a_ramp_out_of_another_motion_begins_without_deceleration(way):
    last, elsewhere = LastCommand(np.zeros(1), np.ones(1)), np.full(1, 9.0)
    ramp = Ramp((FREE,), step_s=0.1, stop_s=2.0)
    first = ramp.stop(last)
    for _ in range(5):
        ramp.hold(last) if way == 'hold' else ramp.approach(last, elsewhere)
    assert ramp.stop(last) == first


# going to a pose: slowly, smoothly, without overshoot, in the time given


@settings(max_examples=50, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3), SPEEDS, rates)
def test_a_pose_is_reached_slowly_smoothly_and_in_time(start, goal, share, step_s):
    limit = replace(ARM, low=-3.0, high=3.0, max_step=2.0 * step_s)
    ramp = Ramp((limit,), step_s=step_s, stop_s=1.0)
    pose = np.array([goal])
    last = begin(limit, SLOW_SHARE * share, start, step_s)
    for _ in range(round(travel_time_s(limit, goal, 1.0, step_s) / step_s)):
        after = last.after(ramp.approach(last, pose), step_s)
        change = abs(after.velocity[0] - last.velocity[0])
        assert change <= near(ramp.deceleration[0] * step_s, 10 / step_s)
        assert abs(after.velocity[0]) <= near(SLOW_SHARE * 2.0, 10 / step_s)
        last = after
    assert last.position[0] == goal
    assert (ramp.approach(last, pose) == pose).all()


@settings(max_examples=50, deadline=None)
@given(st.floats(-3, 3), st.floats(-3, 3), rates)
def test_from_rest_a_pose_is_not_overshot(start, goal, step_s):
    ramp = Ramp((ARM,), step_s=step_s, stop_s=1.0)
    last = LastCommand(np.array([start]), np.zeros(1))
    for _ in range(round(2 / step_s)):
        after = last.after(ramp.approach(last, np.array([goal])), step_s)
        assert (goal - after.position[0]) * (goal - start) >= 0
        assert abs(goal - after.position[0]) <= abs(goal - last.position[0])
        last = after


def test_who_comes_too_fast_is_slowed_no_harder_than_the_brakes_allow():
    ramp = Ramp((ARM,), step_s=0.01, stop_s=1.0)
    last = LastCommand(np.zeros(1), np.array([2.0]))
    for pose in (np.array([0.3]), np.zeros(1)):
        after = last.after(ramp.approach(last, pose), 0.01)
        assert after.velocity[0] == pytest.approx(2.0 - ramp.deceleration[0] * 0.01)


def test_velocities_come_to_zero_on_the_way_to_a_pose():
    ramp = Ramp((ARM, WHEEL), step_s=1 / 30, stop_s=0.5)
    last = LastCommand(np.array([0.0, 0.8]), np.zeros(2))
    for _ in range(16):
        last = last.after(ramp.approach(last, np.array([1.0, 0.0])), 1 / 30)
    assert 0 < last.position[0] < 1
    assert last.position[1] == 0.0


def test_the_way_to_a_pose_is_given_its_time():
    # 4 rad at a quarter of 2 rad/s, and 1 s to gain and to lose the pace
    arm = replace(ARM, low=-1.0, high=3.0)
    assert travel_time_s(arm, -1.0, 0.5, 0.01) == pytest.approx(9.0)
    assert travel_time_s(arm, 2.0, 0.5, 0.01) == pytest.approx(7.0)
    assert travel_time_s(WHEEL, 0.0, 0.5, 0.01) == 0.5
    # a joint without an end
    assert travel_time_s(replace(ARM, low=-1e6), 0.0, 0.5, 0.01) == 60.0
