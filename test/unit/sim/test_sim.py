# SPDX-License-Identifier: Apache-2.0
"""The simulated robot: its limits, its task, its cameras, its teacher."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.sim_places import places, poses

from lerobot_serve.sim.arm import (
    Arm,
    ELBOW,
    hand_xy,
    HIGH_RAD,
    HOME_RAD,
    JOINT_NAMES,
    LOW_RAD,
    MAX_SPEED_RAD_S,
    WRIST,
)
from lerobot_serve.sim.scene import (
    expert_chunk,
    HOLD_S,
    inverse_kinematics,
    ReachScene,
    SPEED_RAD_S,
    TARGET_APART_M,
    TARGET_FAR_M,
    TARGET_NEAR_M,
)

TICK_S = 1 / 30


def test_a_leader_with_a_turned_wrist_reaches_its_targets_as_fast():
    taken_s = []
    for offset_rad in (0.0, 1.5):
        scene = ReachScene(Arm(), np.random.default_rng(3))
        results = []
        while len(results) < 10:
            scene.arm.step(scene.leader_pose(0.05, offset_rad), TICK_S)
            if result := scene.step(TICK_S):
                results.append(result)
        assert all(result.success for result in results)
        assert scene.arm.positions[WRIST] == pytest.approx(offset_rad, abs=0.05)
        taken_s.append([result.duration_s for result in results])
    # the first attempt begins before the wrist is turned
    assert taken_s[1][1:] == pytest.approx(taken_s[0][1:], abs=0.1)


anything = st.floats(allow_nan=True, allow_infinity=True)
commands = st.lists(anything, min_size=6, max_size=6) | st.lists(anything, max_size=8)


@given(poses, st.lists(st.tuples(commands, st.floats(0, 1)), max_size=8))
def test_no_command_breaks_a_limit(pose, steps):
    arm = Arm(pose)
    for command, dt_s in steps:
        before = arm.positions
        arm.step(command, dt_s)
        assert ((arm.positions >= LOW_RAD) & (arm.positions <= HIGH_RAD)).all()
        assert np.abs(arm.positions - before).max() <= MAX_SPEED_RAD_S * dt_s + 1e-12


@given(poses, commands.filter(lambda c: len(c) != 6 or not np.isfinite(c).all()))
def test_a_bad_command_is_counted_and_moves_nothing(pose, command):
    arm = Arm(pose)
    before = arm.positions
    arm.step(command, TICK_S)
    assert (arm.positions == before).all()
    assert arm.refused_commands == 1


def test_a_bad_command_leaves_the_last_target():
    arm, other = Arm(), Arm()
    for command in ([1.0] * 6, [math.nan] * 6, [1.0] * 5 + [math.inf]):
        arm.step(command, TICK_S)
        other.step([1.0] * 6, TICK_S)
    assert (arm.positions == other.positions).all()
    assert (arm.refused_commands, other.refused_commands) == (2, 0)


@given(poses, poses)
def test_the_arm_arrives_without_a_new_command(pose, goal):
    arm = Arm(pose)
    arm.step(goal, 0)
    for _ in range(120):
        arm.step(None, TICK_S)
    assert np.allclose(arm.positions, goal, atol=1e-3)


@pytest.mark.parametrize('dt_s', [-0.01, math.nan, math.inf])
def test_a_bad_time_step_is_an_error(dt_s):
    with pytest.raises(ValueError, match='dt_s must be finite and at least 0'):
        Arm().step(HOME_RAD, dt_s)


def test_a_command_beyond_a_limit_is_the_limit():
    arm, other = Arm(), Arm()
    for _ in range(60):
        arm.step([100.0] * 6, TICK_S)
        other.step(HIGH_RAD, TICK_S)
        assert (arm.positions == other.positions).all()


def test_positions_are_a_copy():
    arm = Arm()
    arm.positions[:] = 1
    assert np.allclose(arm.positions, HOME_RAD)


def test_left_is_positive():
    assert np.allclose(hand_xy([0] * 6), (0.38, 0))
    assert np.allclose(hand_xy([math.pi / 2] + [0] * 5), (0, 0.38))
    assert np.allclose(hand_xy([0, 0, math.pi / 2, 0, 0, 0]), (0.2, 0.18))


@given(poses, places)
def test_the_solution_reaches_within_the_limits(pose, place):
    goal = inverse_kinematics(pose, place)
    assert math.dist(hand_xy(goal), place) < 1e-9
    assert ((goal >= LOW_RAD) & (goal <= HIGH_RAD)).all()
    others = [
        i for i, name in enumerate(JOINT_NAMES) if name not in ('shoulder_pan', 'elbow_flex')
    ]
    assert (goal[others] == 0).all()
    if abs(pose[ELBOW]) > 0.3:
        assert goal[ELBOW] * pose[ELBOW] > 0


@given(poses, st.floats(-2, 2), st.floats(-2, 2))
def test_a_place_out_of_reach_gives_a_pose_within_the_limits(pose, x_m, y_m):
    goal = inverse_kinematics(pose, (x_m, y_m))
    assert ((goal >= LOW_RAD) & (goal <= HIGH_RAD)).all()


@given(poses, places)
def test_the_expert_is_smooth_and_repeats_itself(pose, place):
    chunk = expert_chunk(pose, place, 120, TICK_S)
    assert chunk.shape == (120, 6)
    assert chunk.dtype == np.float32
    moves = np.abs(np.diff(np.vstack((pose, chunk)), axis=0)).max(1)
    assert moves.max() <= SPEED_RAD_S * TICK_S + 1e-5
    assert (np.diff(moves) < 1e-5).all()
    assert math.dist(hand_xy(chunk[-1]), place) < 0.002
    if abs(chunk[9][ELBOW]) > 0.3:
        again = expert_chunk(chunk[9], place, 20, TICK_S)
        assert np.allclose(again, chunk[10:30], atol=1e-4)


def attempts(scene, count, act=lambda scene: None):
    outcomes = []
    while len(outcomes) < count:
        scene.arm.step(act(scene), TICK_S)
        outcomes += filter(None, [scene.step(TICK_S)])
    return outcomes


def test_the_expert_always_succeeds():
    scene = ReachScene(Arm(), np.random.default_rng(1))
    outcomes = attempts(
        scene, 20, lambda s: expert_chunk(s.arm.positions, s.target_xy, 2, TICK_S)[1]
    )
    assert all(outcome.success and outcome.distance_m <= 0.02 for outcome in outcomes)


def test_an_idle_arm_fails_in_time_and_stays():
    arm = Arm()
    scene = ReachScene(arm, np.random.default_rng(2))
    target_xy = scene.target_xy
    (outcome,) = attempts(scene, 1)
    assert not outcome.success
    assert outcome.duration_s == pytest.approx(8.0)
    assert outcome.distance_m == pytest.approx(math.dist(arm.hand(), target_xy))
    assert scene.target_xy != target_xy
    assert np.allclose(arm.positions, HOME_RAD)


def test_success_needs_the_hand_to_stay():
    scene = ReachScene(Arm(), np.random.default_rng(3))
    there, away = scene.arm.hand(), scene.target_xy
    scene.target_xy = there
    assert scene.step(HOLD_S - 0.05) is None
    scene.target_xy = away
    assert scene.step(0.1) is None
    scene.target_xy = there
    assert scene.step(HOLD_S - 0.05) is None
    outcome = scene.step(0.05)
    assert outcome is not None
    assert outcome.success
    assert outcome.duration_s == pytest.approx(2 * HOLD_S + 0.05)


@given(st.integers(0, 2**32), poses)
@settings(max_examples=50, deadline=None)
def test_targets_are_reachable_apart_and_repeat(seed, pose):
    first, second = (ReachScene(Arm(pose), np.random.default_rng(seed)) for _ in range(2))
    assert first.target_xy == second.target_xy
    assert first.distance_m >= TARGET_APART_M
    assert TARGET_NEAR_M - 1e-9 <= math.hypot(*first.target_xy) <= TARGET_FAR_M + 1e-9
