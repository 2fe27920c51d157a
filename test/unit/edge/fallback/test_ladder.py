# SPDX-License-Identifier: Apache-2.0
"""The ladder, step by step: which rung, until when, what it wants, and the way back up."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.ladder_rig import ARM, BASE, kinds, MIXED, rungs, S, STEP_NS, STEP_S, world

from lerobot_serve.cage.description import LastCommand
from lerobot_serve.edge.control.authority import TeardownState
from lerobot_serve.edge.control.ladder import Ladder
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.parameters import ParameterError
from lerobot_serve_interfaces.msg import EdgeState

ALL = 'ramp 0.5, hold 1, repeat_last 0.2, safe_pose 2, stop_service'
ONE = np.ones(2)


def test_the_rungs_are_those_of_the_message():
    for kind in RungKind:
        assert getattr(EdgeState, f'RUNG_{kind.name}') == kind
    assert len(RungKind) == 10


def test_the_rungs_come_in_their_order_each_until_its_deadline():
    there = world(ALL)
    there.play()
    assert kinds(there.dry(4)) == [
        ('ramp', 25),
        ('hold', 50),
        ('repeat_last', 10),
        ('safe_pose', 100),
        ('stop_service', 15),
    ]


@pytest.mark.parametrize('text', ['hold', 'ramp 0.5, hold', 'safe_pose', 'stop_service', ALL])
def test_with_nothing_ever_played_nothing_is_commanded(text):
    there = world(text)
    there.last = LastCommand(ONE, 0 * ONE)
    for decision in there.dry(5):
        assert (decision.kind, decision.wanted) == (RungKind.POLICY, None)
        assert decision.reason == 'policy: nothing_played_yet'
        assert not decision.call_stop_service


def test_what_moved_though_nothing_was_played_comes_to_rest_and_is_then_silent():
    there = world('safe_pose')
    there.last = LastCommand(ONE, ONE)
    assert [name for name, _ in kinds(there.dry(2))] == ['ramp', 'policy']
    assert there.last is None


def test_without_a_command_to_start_from_nothing_is_commanded():
    there = world(ALL)
    there.play()
    there.last = None
    for decision in there.dry(5):
        assert (decision.wanted, decision.call_stop_service) == (None, False)


def test_the_first_action_is_played_at_once():
    decision = world('hold').step(ONE)
    assert (decision.kind, decision.reason) == (RungKind.POLICY, 'policy')
    assert decision.wanted is ONE


def test_every_step_says_why():
    there = world(ALL)
    there.play()
    there.dry(0.1)
    there.step(ONE, 2)
    there.dry(4)
    for decision in there.seen[2:]:
        kind, cause = decision.reason.split(': ')
        assert kind == decision.kind.name.lower()
        assert cause in ('nothing_to_play', 'too_few_rows_to_resume', 'stopped')
    assert there.seen[7].reason == 'ramp: too_few_rows_to_resume'


def test_a_late_tick_skips_what_is_over_and_never_goes_back():
    there = world(ALL)
    there.play()
    there.dry(0.1)
    there.now_ns += 2 * S
    assert there.step().kind is RungKind.SAFE_POSE
    there.now_ns -= 2 * S
    assert there.step().kind is RungKind.SAFE_POSE
    there.now_ns += 10**6 * S
    assert there.step().kind is RungKind.STOP_SERVICE


def test_a_deadline_is_reached_on_its_nanosecond():
    there = world('ramp 0.5, hold')
    there.play()
    began_ns = there.now_ns
    there.step()
    there.now_ns = began_ns + S // 2 - 1
    assert there.step().kind is RungKind.RAMP
    there.now_ns = began_ns + S // 2
    assert there.step().kind is RungKind.HOLD


# what the rungs want


def test_the_ramp_goes_on_from_the_last_command_and_comes_to_rest():
    there = world('ramp 0.5, hold')
    there.play(0.0, 0.02, 0.04)
    steps = np.diff([0.02, 0.04, *(d.wanted[0] for d in there.dry(0.6))])
    assert (np.diff(steps) <= 1e-12).all()
    assert steps[1] > 0.015
    assert steps[-1] == 0.0
    assert (there.last.velocity == 0).all()


def test_the_ramp_takes_the_time_that_its_rung_gives_it():
    ways = []
    for text in ('ramp 0.5, hold', 'ramp 1.5, hold'):
        there = world(text)
        there.play(0.0, 0.05)
        there.dry(2)
        ways.append(there.last.position[0] - 0.05)
    assert ways[1] > 2 * ways[0] > 0


def test_hold_repeats_the_positions_and_stops_the_velocities():
    there = world('hold', MIXED)
    there.play(0.3, 0.4)
    wanted = [d.wanted for d in there.dry(0.6)]
    assert {w[0] for w in wanted} == {0.4}
    speeds = [0.4, *(w[1] for w in wanted)]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[1] > 0.3
    assert speeds[-1] == 0.0


def test_repeat_last_repeats_numbers_also_where_that_is_motion():
    there = world('repeat_last 0.2, hold', MIXED)
    there.play(0.3, 0.4)
    for decision in there.dry(0.2):
        assert decision.wanted.tolist() == [0.4, 0.4]
    assert there.step().wanted[1] < 0.4


def test_zero_is_zero_at_once():
    there = world('zero', BASE)
    there.play(0.3, 0.4)
    assert there.step().wanted.tolist() == [0.0, 0.0]


def test_the_safe_pose_is_approached_step_by_step_and_kept():
    there = world('safe_pose')
    there.play(0.0)
    first = there.step()
    assert 0 < first.wanted[0] < 0.01
    assert first.wanted[1] == -first.wanted[0]
    there.dry(5)
    assert there.seen[-1].wanted.tolist() == [0.5, -0.5]


def test_nobody_can_change_the_last_command_through_what_is_wanted():
    for text in ('hold', 'repeat_last 9, hold', 'ramp 0.5, hold', 'safe_pose'):
        there = world(text)
        there.play(0.5)
        kept = there.last.position.copy()
        before = there.last
        there.step().wanted[:] = 77
        assert (before.position == kept).all()


# the stop


def test_the_stop_service_is_called_once_and_then_nothing_is_commanded():
    there = world('ramp 0.5, stop_service')
    there.play()
    there.dry(0.5)
    first = there.step()
    assert (first.kind, first.call_stop_service) == (RungKind.STOP_SERVICE, True)
    assert (first.wanted == there.last.position).all()
    for rows in (0, 1, 99) * 20:
        decision = there.step(ONE if rows else None, rows)
        assert (decision.wanted, decision.call_stop_service) == (None, False)
        assert decision.kind is RungKind.STOP_SERVICE


def test_a_robot_that_was_stopped_is_not_torn_down():
    there = world('stop_service', teardown='ramp 0.1, safe_pose 1, stop_service')
    there.play(0.0, 0.0)
    there.step()
    there.be(state=ConnectionState.DEAD)
    assert {d.wanted for d in there.dry(1)} == {None}


def test_what_still_moves_when_the_stop_is_called_is_brought_to_rest():
    there = world('stop_service', MIXED)
    there.play(0.3, 0.35, 0.4)
    assert [name for name, _ in kinds(there.dry(2))] == ['stop_service', 'ramp', 'stop_service']
    assert [d.call_stop_service for d in there.seen].index(True) == 3
    assert sum(d.call_stop_service for d in there.seen) == 1
    speeds = [d.wanted[1] for d in there.seen[2:] if d.wanted is not None]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[-1] == 0.0


def test_rungs_in_a_wrong_order_are_refused():
    with pytest.raises(ParameterError, match='the last rung is unlimited'):
        Ladder(rungs('hold 3'), ARM, step_s=STEP_S, resume_rows=1)
    with pytest.raises(ParameterError, match='the last rung is unlimited'):
        Ladder(rungs('hold'), ARM, step_s=STEP_S, resume_rows=1, teardown=rungs('hold 3'))
    with pytest.raises(ParameterError, match='ladder must have at least one rung'):
        Ladder((), ARM, step_s=STEP_S, resume_rows=1)


def test_the_step_of_the_rig_is_the_step_of_the_ladder():
    assert STEP_NS == STEP_S * S


# the ladder's way up, and what takes its place: hysteresis, pauses, releases


@pytest.mark.parametrize(('rows', 'plays'), [(0, False), (1, False), (2, False), (3, True)])
def test_it_plays_again_when_enough_is_buffered(rows, plays):
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    assert there.ladder.plays(rows) == plays
    decision = there.step(ONE, rows)
    assert (decision.kind is RungKind.POLICY) == plays


def test_one_row_is_enough_without_hysteresis():
    there = world('ramp 0.5, hold', resume_rows=1)
    there.play()
    for _ in range(5):
        there.step()
        assert there.step(ONE, 1).kind is RungKind.POLICY


def test_each_fall_begins_without_deceleration():
    there = world('ramp 0.5, hold')
    there.play(0.0, 0.02)
    first = there.step().wanted[0] - 0.02
    there.dry(0.1)
    there.play(0.0, 0.02)
    assert there.step().wanted[0] - 0.02 == pytest.approx(first)


# where another one commands


def test_a_pause_comes_to_rest_whatever_is_buffered():
    there = world('ramp 0.5, stop_service')
    there.play()
    there.be(paused=True)
    seen = [there.step(ONE, 50) for _ in range(100)]
    assert [name for name, _ in kinds(seen)] == ['ramp', 'hold']
    assert {d.reason for d in seen} == {'ramp: paused', 'hold: paused'}


def test_a_pause_that_releases_comes_to_rest_and_then_commands_nothing():
    there = world('ramp 0.5, hold')
    there.is_silent_while_paused = True
    there.play()
    there.be(paused=True)
    seen = [there.step(ONE, 50) for _ in range(100)]
    assert [name for name, _ in kinds(seen)] == ['ramp', 'no_command']
    assert seen[-1].wanted is None
    there.be(paused=False)
    assert {d.wanted for d in there.dry(1)} == {None}
    assert there.step(ONE, 1).kind is RungKind.POLICY


def test_a_teardown_in_the_middle_of_a_fall_begins_at_its_own_top():
    there = world('ramp 0.5, hold', teardown='ramp 0.2, stop_service')
    there.play()
    there.dry(2)
    there.be(state=ConnectionState.DEAD)
    assert kinds(there.dry(0.4)) == [('ramp', 10), ('stop_service', 10)]
    assert sum(d.call_stop_service for d in there.seen) == 1


def test_a_teardown_waits_while_paused_and_then_begins_at_its_top():
    there = world('ramp 0.5, hold', teardown='ramp 0.2, safe_pose 1, stop_service')
    there.play()
    there.be(paused=True, state=ConnectionState.DEAD)
    assert [name for name, _ in kinds(there.dry(9))] == ['ramp', 'hold']
    there.be(paused=False)
    assert kinds(there.dry(0.6)) == [('ramp', 10), ('safe_pose', 20)]
    there.be(paused=True)
    assert [name for name, _ in kinds(there.dry(9))] == ['ramp', 'hold']
    there.be(paused=False)
    assert kinds(there.dry(0.6)) == [('ramp', 10), ('safe_pose', 20)]


def test_a_teardown_without_a_stop_service_ends_in_silence():
    there = world('hold', teardown='ramp 0.2, safe_pose 4, stop_service', has_stop_service=False)
    there.play()
    there.be(state=ConnectionState.DEAD)
    seen = there.dry(6)
    assert [name for name, _ in kinds(seen)] == ['ramp', 'safe_pose', 'no_command']
    assert seen[-1].wanted is None
    assert not there.ladder.stopped
    assert not any(d.call_stop_service for d in seen)
    there.be(state=ConnectionState.CONNECTING)
    assert there.step(ONE, 1).kind is RungKind.POLICY
    assert there.ladder.teardown is TeardownState.PENDING


def test_the_initial_pose_is_approached_slowly_where_it_is_known():
    there = world('hold', teardown='ramp 0.2, initial_pose 20, stop_service')
    there.ladder.initial_pose = np.array([-0.5, 0.5])
    there.play(0.0, 0.0)
    there.be(state=ConnectionState.DEAD)
    seen = there.dry(20)
    steps = abs(np.diff([d.wanted for d in seen if d.wanted is not None], axis=0))
    assert seen[-1].wanted == pytest.approx(np.array([-0.5, 0.5]))
    # a quarter of what the limits allow
    assert 0.01 < steps.max() <= 0.05 / 4 + 1e-9


def test_an_initial_pose_that_is_not_known_is_none_to_go_to():
    there = world('hold', teardown='ramp 0.2, initial_pose 2, stop_service')
    there.play(0.25, 0.25)
    there.be(state=ConnectionState.DEAD)
    assert {tuple(d.wanted) for d in there.dry(2)} == {(0.25, 0.25)}


@pytest.mark.parametrize(
    'orders', [{'paused': True}, {'running': False}, {'state': ConnectionState.DEAD}, {}]
)
def test_before_anything_was_played_nothing_is_commanded(orders):
    there = world('hold', teardown='safe_pose 1, stop_service')
    there.be(**orders)
    assert {(d.wanted, d.call_stop_service) for d in there.dry(2)} == {(None, False)}
    there.be(paused=False, running=True, state=ConnectionState.STREAMING)
    assert there.step(ONE, 1).kind is RungKind.POLICY


def test_what_is_forgotten_is_not_held():
    there = world('ramp 0.5, hold')
    there.play()
    there.dry(1)
    there.ladder.reset()
    assert {d.wanted for d in there.dry(1)} == {None}
    assert there.step(ONE, 1).kind is RungKind.POLICY


@pytest.mark.parametrize('cleared', [False, True])
def test_another_episode_starts_at_the_first_rung(cleared):
    there = world('ramp 0.5, hold 10, stop_service')
    there.play()
    there.dry(10.4)
    there.step(None, cleared=cleared)
    last = [kind for kind, _ in kinds(there.dry(1.0))]
    assert last == (['ramp', 'hold'] if cleared else ['hold', 'stop_service'])
