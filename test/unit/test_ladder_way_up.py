"""The ladder's way up, and what takes its place: hysteresis, pauses, releases."""

from __future__ import annotations

from ladder_rig import kinds, MIXED, rungs, world
import numpy as np
import pytest

from lerobot_serve.cage.judgement import Last
from lerobot_serve.edge.rungs import RungKind

ONE = np.ones(2)


@pytest.mark.parametrize(('rows', 'plays'), [(0, False), (1, False), (2, False), (3, True)])
def test_it_plays_again_when_enough_is_buffered(rows, plays):
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    assert there.ladder.plays(rows) == plays
    decision = there.step(ONE, rows)
    assert (decision.kind is RungKind.PLAY) == plays


def test_once_playing_it_plays_to_the_last_row():
    there = world('ramp 0.5, hold')
    there.play()
    for rows in (3, 2, 1):
        assert there.ladder.plays(rows)
        assert there.step(ONE, rows).kind is RungKind.PLAY
    assert not there.ladder.plays(0)
    assert there.step().kind is RungKind.RAMP


def test_a_short_chunk_is_played_after_waiting_as_long():
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    names = [there.step(ONE, 1).kind.name for _ in range(4)]
    assert names == ['RAMP', 'RAMP', 'RAMP', 'PLAY']


def test_a_gap_starts_the_waiting_anew():
    there = world('ramp 0.5, hold')
    there.play()
    there.step()
    for rows in (1, 1, 0, 1, 1, 0) * 5:
        assert there.step(ONE if rows else None, rows).kind is not RungKind.PLAY


def test_single_rows_do_not_make_it_flap():
    there = world('ramp 0.5, hold')
    there.play()
    names = [there.step(ONE if i % 2 else None, i % 2).kind.name for i in range(50)]
    assert 'PLAY' not in names


def test_one_row_is_enough_without_hysteresis():
    there = world('ramp 0.5, hold', resume_rows=1)
    there.play()
    for _ in range(5):
        there.step()
        assert there.step(ONE, 1).kind is RungKind.PLAY


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


# other rungs in its place


def test_a_diversion_goes_down_its_own_rungs_whatever_is_buffered():
    there = world('ramp 0.5, stop_service')
    there.play()
    there.ladder.divert(rungs('ramp 0.2, hold'), 'paused')
    seen = [there.step(ONE, 50) for _ in range(100)]
    assert kinds(seen) == [('ramp', 10), ('hold', 90)]
    assert {d.reason for d in seen} == {'ramp: paused', 'hold: paused'}
    assert not there.ladder.plays(50)


def test_a_diversion_in_the_middle_of_a_fall_begins_at_its_own_top():
    there = world('ramp 0.5, hold')
    there.play()
    there.dry(2)
    there.ladder.divert(rungs('ramp 0.2, stop_service'), 'dead')
    assert kinds(there.dry(0.4)) == [('ramp', 10), ('stop_service', 10)]


def test_after_a_release_it_is_played_when_enough_is_buffered():
    there = world('ramp 0.5, hold')
    there.play()
    there.ladder.divert(rungs('hold'), 'paused')
    there.dry(0.1)
    there.ladder.release()
    assert there.step(ONE, 2).kind is RungKind.RAMP
    assert there.step(ONE, 3).kind is RungKind.PLAY


def test_after_a_release_with_nothing_to_play_its_own_ladder_begins_at_the_top():
    there = world('ramp 0.5, hold')
    there.play()
    there.dry(3)
    there.ladder.divert(rungs('hold'), 'paused')
    there.dry(1)
    there.ladder.release()
    assert kinds(there.dry(1)) == [('ramp', 25), ('hold', 25)]


def test_a_release_of_what_was_not_diverted_changes_nothing():
    there = world('repeat_last 0.2, hold', MIXED)
    there.play()
    there.dry(0.1)
    there.ladder.release()
    assert kinds(there.dry(0.2)) == [('repeat_last', 5), ('hold', 5)]


def test_a_diversion_before_anything_was_played_commands_nothing():
    there = world('hold')
    there.ladder.divert(rungs('safe_pose, stop_service'.replace('pose', 'pose 1')), 'dead')
    there.last = Last(ONE, ONE)
    assert {(d.wanted, d.call_stop) for d in there.dry(2)} == {(None, False)}
    there.ladder.release()
    assert there.step(ONE, 1).kind is RungKind.PLAY


def test_what_is_forgotten_is_not_held():
    there = world('ramp 0.5, hold')
    there.play()
    there.dry(1)
    there.ladder.forget()
    assert {d.wanted for d in there.dry(1)} == {None}
    assert there.step(ONE, 1).kind is RungKind.PLAY
