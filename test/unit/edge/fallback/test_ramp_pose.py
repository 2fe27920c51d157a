# SPDX-License-Identifier: Apache-2.0
"""Going to a pose: slowly, smoothly, without overshoot, in the time given."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.ramp_rig import ARM, begin, near, rates, SPEEDS, WHEEL

from lerobot_serve.cage.result import LastCommand
from lerobot_serve.edge.fallback.ramp import Ramp, SLOW_SHARE, travel_time_s


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
