# SPDX-License-Identifier: Apache-2.0
"""The ladder's way up, and what takes its place: hysteresis, pauses, releases."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.ladder_rig import kinds, world

from lerobot_serve.edge.control.authority import TeardownState
from lerobot_serve.edge.fallback.rungs import RungKind
from lerobot_serve.edge.session.connection import ConnectionState

ONE = np.ones(2)


@pytest.mark.parametrize(('rows', 'plays'), [(0, False), (1, False), (2, False), (3, True)])
def test_it_plays_again_when_enough_is_buffered(rows, plays):
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    assert there.ladder.plays(rows) == plays
    decision = there.step(ONE, rows)
    assert (decision.kind is RungKind.POLICY) == plays


def test_once_playing_it_plays_to_the_last_row():
    there = world('ramp 0.5, hold')
    there.play()
    for rows in (3, 2, 1):
        assert there.ladder.plays(rows)
        assert there.step(ONE, rows).kind is RungKind.POLICY
    assert not there.ladder.plays(0)
    assert there.step().kind is RungKind.RAMP


def test_a_short_chunk_is_played_after_waiting_as_long():
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    names = [there.step(ONE, 1).kind.name for _ in range(4)]
    assert names == ['RAMP', 'RAMP', 'RAMP', 'POLICY']


def test_a_gap_starts_the_waiting_anew():
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    for rows in (1, 1, 0, 1, 1, 0) * 5:
        assert there.step(ONE if rows else None, rows).kind is not RungKind.POLICY


def test_single_rows_do_not_make_it_flap():
    there = world('ramp 0.5, hold')
    there.play()
    names = [there.step(ONE if i % 2 else None, i % 2).kind.name for i in range(50)]
    assert 'POLICY' not in names


def test_one_row_is_enough_without_hysteresis():
    there = world('ramp 0.5, hold', resume_rows=1)
    there.play()
    for _ in range(5):
        there.step()
        assert there.step(ONE, 1).kind is RungKind.POLICY


def test_each_fall_begins_at_the_top():
    there = world('ramp 0.5, hold 1, safe_pose')
    for _ in range(2):
        there.play()
        assert kinds(there.dry(2)) == [('ramp', 25), ('hold', 50), ('safe_pose', 25)]


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


def test_after_a_pause_it_is_played_when_enough_is_buffered():
    there = world('ramp 0.5, hold')
    there.play()
    there.be(paused=True)
    there.dry(0.1)
    there.be(paused=False)
    assert there.step(ONE, 2).kind is RungKind.RAMP
    assert there.step(ONE, 3).kind is RungKind.POLICY


def test_after_a_pause_with_nothing_to_play_its_own_ladder_begins_at_the_top():
    there = world('ramp 0.5, hold')
    there.play()
    there.dry(3)
    there.be(paused=True)
    there.dry(1)
    there.be(paused=False)
    assert kinds(there.dry(1)) == [('ramp', 25), ('hold', 25)]


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
