# SPDX-License-Identifier: Apache-2.0
"""Reading a ladder: what is refused at start-up, what a robot gets without one, teardown."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import example, given
from hypothesis import strategies as st
import pytest
from support.edge.ladder_rig import ARM, BASE, MIXED, POSITION, robot_of, rungs, STEP_S, VELOCITY

from lerobot_serve.edge.control.ladder import Ladder
from lerobot_serve.edge.control.rungs import (
    parse_ladder,
    ramp_s,
    Rung,
    RungKind,
    stop_time_s,
    teardown_rungs,
)
from lerobot_serve.parameters import ParameterError

SLUGGISH = robot_of(POSITION, POSITION, max_acceleration=2.0)


def test_a_ladder_is_read_in_its_order():
    assert parse_ladder(('ramp 0.5', 'hold 10', 'safe_pose 20', 'stop_service'), ARM) == (
        Rung(RungKind.RAMP, 0.5),
        Rung(RungKind.HOLD, 10.0),
        Rung(RungKind.SAFE_POSE, 20.0),
        Rung(RungKind.STOP_SERVICE),
    )


def test_a_robot_with_positions_gets_ramp_and_hold():
    assert parse_ladder((), ARM) == rungs('ramp 0.5, hold')
    assert [rung.kind.name for rung in parse_ladder((), MIXED)] == ['RAMP', 'HOLD']


def test_a_robot_of_velocities_gets_ramp_and_zero():
    assert parse_ladder((), robot_of(VELOCITY, VELOCITY)) == rungs('ramp 1.04, zero')
    quick = tuple(replace(a, max_step=1.0) for a in BASE.actions)
    assert parse_ladder((), replace(BASE, actions=quick)) == rungs('ramp 0.5, zero')


def test_a_robot_that_brakes_slowly_gets_a_ramp_as_long_as_it_needs():
    (ramp, _) = parse_ladder((), SLUGGISH)
    needed_s = stop_time_s(SLUGGISH.actions[0], STEP_S)
    assert ramp.for_s == pytest.approx(needed_s, abs=0.011)
    assert ramp.for_s > needed_s - 1e-6 > 0.5


@pytest.mark.parametrize(
    ('texts', 'error'),
    [
        (['play 1', 'hold'], "ladder: a rung must be one of ramp, hold, .*, got 'play 1'"),
        (['jump'], r"one of ramp, hold, repeat_last, zero, safe_pose, stop_service, .* 'jump'"),
        (['Hold'], "got 'Hold'"),
        ([''], "got ''"),
        (['ramp 0.5 s', 'hold'], "got 'ramp 0.5 s'"),
        (['ramp -1', 'hold'], "got 'ramp -1'"),
        (['ramp nan', 'hold'], "got 'ramp nan'"),
        (['ramp inf', 'hold'], "got 'ramp inf'"),
        (['ramp 1e3', 'hold'], "got 'ramp 1e3'"),
        (['hold ', 'hold'], "got 'hold '"),
        (['hold\n'], r"got 'hold\\n'"),
        (['hold \u0663', 'hold'], 'a rung must be one of'),
        (['ramp 0', 'hold'], "seconds .* above 0 and at most 3600, got 'ramp 0'"),
        (['hold 3601', 'hold'], "seconds .* above 0 and at most 3600, got 'hold 3601'"),
        (['ramp', 'hold'], r"'ramp' is not the last rung and needs a duration, from 0 to"),
        (['ramp 0.5', 'hold 10'], "the last rung .* must have no duration, got 'hold 10'"),
        (['ramp 0.5', 'repeat_last'], "'repeat_last' must not be the last rung"),
        (['repeat_last 5'], "'repeat_last 5' must not be the last rung"),
        (['repeat_last', 'hold'], 'repeat_last needs a duration, from 0 to 3600 s'),
        (['stop_service', 'hold'], 'stop_service must be the last rung'),
        (['stop_service 5', 'hold'], 'stop_service must be the last rung'),
        (['ramp 0.5', 'stop_service 5'], "must have no duration, got 'stop_service 5'"),
        (['ramp 0.03', 'hold'], "'ramp 0.03' is too short to stop a. .* at least 0.04 s"),
    ],
)
def test_a_ladder_that_is_wrong_is_refused(texts, error):
    with pytest.raises(ParameterError, match=error) as refused:
        parse_ladder(tuple(texts), ARM)
    assert str(refused.value).startswith('ladder')


@pytest.mark.parametrize(
    ('texts', 'robot', 'error'),
    [
        (['zero'], ARM, "'zero' is for velocities only, and a0 is a position"),
        (['zero 1', 'hold'], MIXED, "'zero 1' is for velocities only, and a0 is a position"),
        (['safe_pose'], BASE, "'safe_pose' needs a safe_pose in the robot file, which has none"),
        (['safe_pose 5', 'hold'], robot_of(POSITION), "'safe_pose 5' needs a safe_pose"),
        (['ramp 0.5', 'hold'], SLUGGISH, "'ramp 0.5' is too short to stop a0 .* at least 1.66 s"),
        (['ramp 0.5', 'hold'], robot_of(POSITION, max_acceleration=0.01), 'more than a minute'),
        ([], robot_of(POSITION, max_acceleration=0.01), 'a0 needs more than a minute'),
    ],
)
def test_a_ladder_that_the_robot_cannot_climb_is_refused(texts, robot, error):
    with pytest.raises(ParameterError, match=error) as refused:
        parse_ladder(tuple(texts), robot)
    assert str(refused.value).startswith('ladder')


@pytest.mark.parametrize(
    ('texts', 'robot'),
    [
        (['hold'], robot_of(POSITION)),
        (['zero'], BASE),
        (['safe_pose'], MIXED),
        (['stop_service'], ARM),
        (['ramp'], ARM),
        (['repeat_last 0.5', 'hold'], ARM),
        (['ramp  0.50', 'hold'], ARM),
        (['ramp 1.66', 'hold'], SLUGGISH),
        (['hold 3600', 'hold'], ARM),
    ],
)
def test_a_ladder_that_is_right_is_taken(texts, robot):
    assert len(parse_ladder(tuple(texts), robot)) == len(texts)


def test_the_slowest_joint_is_the_one_that_counts():
    quick, slow = robot_of(POSITION).actions[0], SLUGGISH.actions[1]
    robot = replace(ARM, actions=(slow, quick))
    with pytest.raises(ParameterError, match='too short to stop a1'):
        parse_ladder(('ramp 0.5', 'hold'), robot)


def test_a_shorter_control_step_is_taken_into_account():
    # at most 0.05 a step, so that more steps a second mean more speed
    with pytest.raises(ParameterError, match=r'at least 3\.3'):
        parse_ladder(('ramp 1.7', 'hold'), SLUGGISH, step_s=STEP_S / 2)


texts = st.lists(
    st.sampled_from(['ramp 0.5', 'hold 1', 'repeat_last 1', 'safe_pose 2', 'hold', 'stop_service'])
    | st.text(max_size=8)
    | st.from_regex(r'(ramp|hold|zero|play)( [0-9.]+)?', fullmatch=True),
    max_size=4,
)


@given(texts)
@example(['ramp 0.5', 'stop_service'])
@example(['ramp .'])
@example(['ramp 1000.001', 'hold'])
@example(['ramp 0.5', 'hold 0.00001', 'hold'])
@example(['hold \u0663', 'hold'])
def test_any_text_gives_a_ladder_that_ends_or_one_readable_line(given_texts):
    try:
        ladder = parse_ladder(tuple(given_texts), ARM)
    except ParameterError as error:
        assert '\n' not in str(error)
        return
    assert ladder[-1].for_s is None
    assert all(rung.for_s for rung in ladder[:-1])
    Ladder(ladder, ARM, step_s=STEP_S, resume_rows=1)
    shown = tuple(map(str, ladder))
    assert parse_ladder(shown, ARM) == ladder


# pause and teardown


def test_how_long_a_stop_takes_is_what_the_first_ramp_says():
    assert ramp_s(rungs('hold 1, ramp 0.7, ramp 3, hold'), ARM, STEP_S) == 0.7
    assert ramp_s(rungs('hold'), ARM, STEP_S) == 0.5
    assert ramp_s(rungs('ramp'), SLUGGISH, STEP_S) == 1.66
    assert Ladder(rungs('ramp 0.7, hold'), ARM, step_s=STEP_S, resume_rows=1).ramp_s == 0.7


def test_a_teardown_comes_to_rest_first_and_commands_nothing_at_its_end():
    assert teardown_rungs('hold', ARM, 0.5) == ()
    assert teardown_rungs('stop_service', ARM, 0.5) == rungs('ramp 0.5, stop_service')
    ramp, pose, end = teardown_rungs('safe_pose', ARM, 0.5)
    assert (ramp, end) == rungs('ramp 0.5, stop_service')
    # 2.5 at a quarter of 2.5 a second, and 1 s to gain and to lose the pace
    assert pose == Rung(RungKind.SAFE_POSE, pytest.approx(5.0))
    # the joint with the longest way counts
    lopsided = replace(ARM, safe_pose=(-2.0, 0.0))
    assert teardown_rungs('safe_pose', lopsided, 0.5)[1].for_s == pytest.approx(7.4)
    assert teardown_rungs('safe_pose', ARM, 0.5, step_s=STEP_S / 2)[1].for_s == pytest.approx(3.0)


def test_the_way_to_the_initial_pose_may_be_the_whole_range():
    ramp, pose, end = teardown_rungs('initial_pose', robot_of(POSITION), 0.5)
    assert (ramp, end) == rungs('ramp 0.5, stop_service')
    assert pose == Rung(RungKind.INITIAL_POSE, pytest.approx(4 / 0.625 + 1.0))


def test_a_teardown_to_a_pose_needs_one():
    with pytest.raises(
        ParameterError, match="teardown 'safe_pose' needs a safe_pose in the robot"
    ):
        teardown_rungs('safe_pose', robot_of(POSITION), 0.5)


def test_a_robot_without_bounds_has_no_ramp_that_is_longer_than_asked():
    assert all(action.max_acceleration == inf for action in ARM.actions)
    assert parse_ladder(('ramp 0.04', 'hold'), ARM)[0].for_s == 0.04
