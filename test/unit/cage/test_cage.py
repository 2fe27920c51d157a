# SPDX-License-Identifier: Apache-2.0
"""The cage: its verdicts, reasons, counts and latch, and that it fails closed."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.cage_rig import at_rest, bounds, cage, judge, moderate, robots, STEP_S, vectors

from lerobot_serve.cage.description import ActionLimit, Interlock, LastCommand, Motion, Verdict
from lerobot_serve.cage.limits import MotionLimits

POSITION, VELOCITY = Motion.POSITION, Motion.VELOCITY
ARM = (
    ActionLimit('pan.pos', 'pan', POSITION, -1.0, 1.0, 0.1, max_velocity=2.0, max_lead=0.5),
    ActionLimit('lift.pos', 'lift', POSITION, 0.5, 2.0, 0.2, max_acceleration=100.0),
    ActionLimit('grip.pos', 'grip', POSITION, -0.2, 1.8, 0.05),
)
SIMPLE = (ActionLimit('pan.pos', 'pan', POSITION, -1.0, 1.0, 0.1),)
HERE = np.array([0.0, 1.0, 0.5])
FORWARD = np.array([1.0, 0.0, 0.0])
LOW_IS_STOP = (Interlock('low', 'altitude', 1.0, None, {'joint_0': 0.0}),)


@given(st.data())
def test_what_is_allowed_passes_unchanged_and_is_not_the_same_array(data):
    actions = data.draw(robots())
    guard = cage(actions)
    here = np.array([data.draw(st.floats(*np.clip(bounds(limit), -9, 9))) for limit in actions])
    judgement = judge(guard, here, at_rest(*here), here)
    assert judgement.verdict == Verdict.PASS
    assert judgement.command.tobytes() == here.tobytes()
    assert not np.shares_memory(judgement.command, here)


@given(st.data())
def test_nothing_that_is_given_is_changed_or_handed_back(data):
    actions = data.draw(robots())
    count = len(actions)
    given_arrays = [data.draw(vectors(count)) for _ in range(4)] + [np.zeros(1)]
    before = [array.tobytes() for array in given_arrays]
    wanted, position, velocity, measured, state = given_arrays
    guard = cage(actions, LOW_IS_STOP, ('altitude',), latch_after_trips=2)
    for last in (LastCommand(position, velocity), None, None):
        command = judge(guard, wanted, last, measured, state).command
        assert [array.tobytes() for array in given_arrays] == before
        assert command is None or not any(np.shares_memory(command, a) for a in given_arrays)


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@given(joint=st.integers(0, 2), there=vectors(3, moderate))
def test_what_is_not_finite_repeats_the_last_command_and_is_never_zero(value, joint, there):
    wanted = there.copy()
    wanted[joint] = value
    judgement = judge(cage(ARM), wanted, at_rest(*there), measured=there)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command.tobytes() == there.tobytes()
    assert judgement.reason == f'{ARM[joint].name}: not finite'


def test_what_moves_when_it_is_held_comes_to_rest_as_its_acceleration_allows():
    guard, commands = cage(ARM), []
    last = LastCommand(HERE, np.array([0.0, 5.0, 2.0]))
    for _ in range(4):
        judgement = judge(guard, HERE * np.nan, last, measured=HERE)
        last = last.after(judgement.command, STEP_S)
        commands.append(judgement.command[1])
    # 0.1 a step, less 0.04 each time; without a limit at once
    assert commands == pytest.approx([1.06, 1.08, 1.08, 1.08])
    assert last.position[2] == HERE[2]


MOVING = LastCommand(np.array([0.0, 1.0, 0.5]), np.array([0.0, 5.0, 0.0]))


@pytest.mark.parametrize(
    ('wanted', 'command', 'reason'),
    [
        ([0.5, 1.1, 0.5], [0.04, 1.1, 0.5], 'pan.pos: max_velocity'),
        ([3.0, 1.1, 0.5], [0.04, 1.1, 0.5], 'pan.pos: limit'),
        ([0.0, 1.1, 0.6], [0.0, 1.1, 0.55], 'grip.pos: max_step'),
        ([0.0, 1.18, 0.5], [0.0, 1.14, 0.5], 'lift.pos: max_acceleration'),
        ([0.0, 1.0, 0.5], [0.0, 1.06, 0.5], 'lift.pos: max_acceleration'),
        ([0.0, 1.1, 0.45], [0.0, 1.1, 0.45], ''),
    ],
)
def test_the_reason_names_the_joint_and_the_limit(wanted, command, reason):
    judgement = judge(cage(ARM), np.array(wanted), MOVING, measured=HERE)
    assert judgement.command == pytest.approx(np.array(command))
    assert judgement.reason == reason
    assert judgement.cause == reason.partition(': ')[2]
    assert judgement.verdict == (Verdict.CLAMPED if reason else Verdict.PASS)


def test_the_reason_names_a_lead():
    judgement = judge(
        cage(ARM), HERE + FORWARD * 0.02, at_rest(*HERE), measured=HERE - FORWARD * 0.49
    )
    assert judgement.command == pytest.approx(HERE + FORWARD * 0.01)
    assert (judgement.reason, judgement.cause) == ('pan.pos: max_lead', 'max_lead')


def test_the_first_command_is_bounded_from_where_the_robot_is():
    begun = cage(ARM).limits.start(HERE)
    assert begun.position.tobytes() == HERE.tobytes()
    assert not begun.velocity.any()
    judgement = judge(cage(ARM), HERE + 1, begun, measured=HERE)
    assert judgement.command == pytest.approx(np.array([0.04, 1.04, 0.55]))
    assert judgement.verdict == Verdict.CLAMPED


def test_one_measured_sample_is_no_place_to_begin_from():
    judgement = judge(cage(ARM), HERE, None, measured=HERE)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert judgement.cause == 'position_unknown'


@pytest.mark.parametrize(
    'measured',
    [None, np.zeros(2), np.zeros((3, 1)), np.array([0.0, np.nan, 0.0]), HERE + inf, 'here', 7],
)
def test_without_knowing_where_the_robot_is_nothing_moves(measured):
    judgement = judge(cage(ARM), HERE, None, measured=measured)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert judgement.reason == 'position unknown: no measured state'
    assert cage(ARM).limits.start(measured) is None


@pytest.mark.parametrize('position', [HERE * np.nan, HERE[:2], HERE + inf, list(HERE)])
def test_a_last_command_that_is_not_known_is_not_made_up_for_by_a_measurement(position):
    for last in (LastCommand(position, np.zeros(3)), LastCommand(HERE, position), position):
        judgement = judge(cage(ARM), HERE, last, measured=HERE)
        assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
        assert judgement.cause == 'position_unknown'


@pytest.mark.parametrize('measured', [None, np.zeros(2), np.array([np.nan, 0.0, 0.0])])
def test_without_the_measured_position_a_lead_cannot_be_kept(measured):
    judgement = judge(cage(ARM), HERE + 0.01, at_rest(*HERE), measured=measured)
    assert judgement.verdict == Verdict.HELD
    assert judgement.command.tobytes() == HERE.tobytes()
    assert judgement.reason == 'pan.pos: measured position unknown'


@pytest.mark.parametrize('measured', [None, np.zeros(2), np.array([np.nan])])
def test_a_robot_without_leads_plays_on_without_measurements(measured):
    judgement = judge(cage(SIMPLE), np.array([0.05]), at_rest(0.0), measured=measured)
    assert judgement.verdict == Verdict.PASS


@pytest.mark.parametrize(
    'wanted', [None, '0', [0.0], np.zeros(2), np.zeros((1, 1)), np.array(['0']), np.array([0j])]
)
def test_what_is_not_an_action_stops(wanted):
    judgement = judge(cage(SIMPLE), wanted, at_rest(0.0))
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert judgement.reason == 'command has a wrong shape or type'


@pytest.mark.parametrize('method', ['nearest', 'is_action', 'held', 'unmeasured'])
@pytest.mark.parametrize('error', [ZeroDivisionError, IndexError, TypeError, MemoryError])
def test_a_cage_that_fails_stops_the_robot(monkeypatch, method, error):
    def fail(*arguments, **options):
        raise error('a mistake of ours')

    guard = cage(ARM)
    monkeypatch.setattr(MotionLimits, method, fail)
    judgement = judge(guard, HERE * (np.nan if method == 'held' else 1), at_rest(*HERE), HERE)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)
    assert judgement.reason == 'cage failed: a mistake of ours'
    assert guard.trips == {'failed': 1}


def test_limits_that_make_what_is_not_finite_stop_the_robot(monkeypatch):
    guard = cage(ARM)
    monkeypatch.setattr(MotionLimits, 'nearest', lambda *_, **__: HERE * np.nan)
    judgement = judge(guard, HERE, at_rest(*HERE), HERE)
    assert (judgement.verdict, judgement.command) == (Verdict.STOPPED, None)


def test_a_step_without_a_command_is_one_without_motion():
    last = at_rest(0.5).after(np.array([0.75]), STEP_S)
    assert (last.position, last.velocity) == (0.75, 12.5)
    still = last.after(None, STEP_S)
    assert (still.position, still.velocity) == (0.75, 0)


def play(guard, *steps: float) -> list[Verdict]:
    return [judge(guard, np.array([step]), at_rest(0.0)).verdict for step in steps]


def test_the_latch_closes_after_trips_in_a_row_and_stays_closed_until_reset():
    guard = cage(SIMPLE, latch_after_trips=3)
    clamped, stopped = [Verdict.CLAMPED], [Verdict.STOPPED]
    assert play(guard, 0.5, 0.5, 0.0, 0.5, 0.5) == 2 * clamped + [Verdict.PASS] + 2 * clamped
    assert not guard.latched
    assert play(guard, np.nan, 0.0, 0.5, 0.0) == [Verdict.HELD, *3 * stopped]
    assert guard.latched
    judgement = judge(guard, np.zeros(1), at_rest(0.0))
    assert judgement.command is None
    assert judgement.reason == (
        'latched after 3 consecutive trips, the last: pan.pos: not finite; call ~/reset_cage'
    )
    guard.reset()
    assert play(guard, 0.0, 0.5, 0.5) == [Verdict.PASS, *2 * clamped]
    assert not guard.latched


def test_without_a_number_the_latch_never_closes():
    guard = cage(SIMPLE)
    assert play(guard, *[0.5] * 500) == [Verdict.CLAMPED] * 500


def test_a_latched_cage_brings_to_rest_what_moves_and_then_sends_nothing():
    guard = cage(ARM, latch_after_trips=1)
    last, commands = LastCommand(HERE, np.array([0.0, 5.0, 0.0])), []
    judge(guard, HERE * np.nan, last, HERE)
    for _ in range(4):
        judgement = judge(guard, HERE + 1, last, HERE)
        assert judgement.verdict == Verdict.STOPPED
        assert judgement.cause == 'latched'
        last = last.after(judgement.command, STEP_S)
        commands.append(judgement.command)
    assert [command[1] for command in commands[:2]] == pytest.approx([1.06, 1.08])
    assert commands[2:] == [None, None]


def test_a_latched_cage_brakes_within_the_lead():
    """The measured position stays behind: what brakes is not driven further ahead of it."""
    coasting = ActionLimit(
        'pan.pos', 'pan', POSITION, -9.0, 9.0, 0.1, max_acceleration=5.0, max_lead=0.1
    )
    guard = cage((coasting,), latch_after_trips=1)
    last, measured = LastCommand(np.array([0.09]), np.array([4.0])), np.array([0.0])
    judge(guard, np.array([np.nan]), last, measured)
    assert guard.latched
    for _ in range(40):
        judgement = judge(guard, np.array([9.0]), last, measured)
        if judgement.command is None:
            break
        last = last.after(judgement.command, STEP_S)
        assert last.position[0] <= 0.1 + 1e-9
    assert judgement.command is None


def test_what_is_not_measured_neither_closes_the_latch_nor_keeps_it_open():
    guard = cage(ARM, latch_after_trips=2)
    for _ in range(9):
        assert judge(guard, HERE, at_rest(*HERE), None).cause == 'position_unknown'
    assert not guard.latched
    judge(guard, HERE * np.nan, at_rest(*HERE), HERE)
    judge(guard, HERE, at_rest(*HERE), None)
    judge(guard, HERE * np.nan, at_rest(*HERE), HERE)
    assert guard.latched


def test_a_robot_that_must_not_move_on_blindly_holds():
    guard = cage(SIMPLE)
    judgement = guard.judge(
        np.array([0.05]), at_rest(0.0), measured=None, state=None, blind='its state is too old'
    )
    assert (judgement.verdict, judgement.command) == (Verdict.HELD, [0.0])
    assert (judgement.cause, judgement.reason) == ('position_unknown', 'its state is too old')


def test_trips_are_counted_by_cause():
    guard = cage(SIMPLE, latch_after_trips=4)
    play(guard, 0.5, 2.0, 0.0, 0.5, np.nan, 0.5, 0.5, 0.5)
    assert guard.trips == {'max_step': 4, 'limit': 1, 'not_finite': 1, 'latched': 1}


@pytest.mark.parametrize(
    'wrong',
    [
        {'low': 2.0},
        {'low': np.nan},
        {'high': np.nan},
        {'max_step': 0.0},
        {'max_step': inf},
        {'max_step': np.nan},
        {'max_velocity': -1.0},
        {'max_acceleration': 0.0},
        {'max_lead': np.nan},
        {'motion': VELOCITY, 'low': 0.5, 'max_velocity': 0.1},
    ],
)
def test_limits_that_make_no_sense_are_refused_at_once(wrong):
    sane = {'motion': POSITION, 'low': -1.0, 'high': 1.0, 'max_step': 0.1}
    with pytest.raises(ValueError, match=r'^pan\.pos: '):
        cage((ActionLimit('pan.pos', 'pan', **(sane | wrong)),))


@pytest.mark.parametrize('step_s', [0.0, -1.0, np.nan, inf])
def test_a_step_takes_some_time(step_s):
    with pytest.raises(ValueError, match='control step'):
        MotionLimits(SIMPLE, step_s)
