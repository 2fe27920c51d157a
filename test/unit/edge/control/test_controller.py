# SPDX-License-Identifier: Apache-2.0
"""The controller: no stale action, no command without an action, no jump in between."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, GIVING_UP, MAX_AGE_NS, STEP_NS

from lerobot_serve.cage.description import Interlock, Verdict
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.session.connection import ConnectionState

# what one step may do to where the robot is
STEP = 0.125


def test_nothing_received_means_nothing_commanded_and_nothing_told():
    bench = Bench()
    assert bench.commands(50) == [None] * 50
    assert bench.dries == 0
    assert (bench.controller.actions_executed, bench.controller.stalls) == (0, 0)
    assert bench.controller.rung is RungKind.POLICY


def test_an_action_is_executed_with_its_source_and_age():
    bench = Bench()
    bench.plan(0.0625, age_ns=60)
    executed = bench.step()
    assert executed.judgement.command.tolist() == [0.0625]
    assert (executed.planned.source.seq, executed.planned.row, executed.age_ns) == (1, 0, 60)
    assert executed.decision.kind is RungKind.POLICY
    assert bench.controller.age_ns == bench.controller.oldest_age_ns == 60
    assert (bench.controller.actions_executed, bench.controller.cage_trips) == (1, 0)


def test_the_oldest_age_is_remembered():
    bench = Bench()
    bench.plan(1.0, age_ns=90)
    bench.plan(2.0, age_ns=-STEP_NS + 5)
    bench.commands(2)
    assert (bench.controller.age_ns, bench.controller.oldest_age_ns) == (5, 90)


# what is too old


@pytest.mark.parametrize(('age_ns', 'plays'), [(MAX_AGE_NS, True), (MAX_AGE_NS + 1, False)])
def test_the_bound_of_age_is_the_last_moment(age_ns, plays):
    bench = Bench()
    bench.plan(0.5, age_ns=age_ns)
    assert (bench.step() is not None) == plays
    assert bench.controller.dropped['stale_action'] == (not plays)


def test_stale_actions_are_dropped_counted_and_skipped():
    bench = Bench()
    bench.plan(1.0, 2.0, 3.0, age_ns=MAX_AGE_NS + 1, seq=1)
    bench.plan(4.0, seq=2)
    assert bench.step().planned.source.seq == 2
    assert bench.controller.dropped == {'stale_action': 3}


def test_a_clock_that_jumps_forward_ends_what_is_played():
    bench = Bench()
    bench.plan(1.0, 2.0, 3.0)
    assert bench.step().planned
    bench.now_ns += 10**12
    executed = bench.step()
    assert (executed.planned, executed.decision.kind) == (None, RungKind.RAMP)
    assert bench.controller.dropped == {'stale_action': 2}
    assert bench.controller.stalls == 1


def test_an_action_grows_too_old_between_its_own_steps():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0, age_ns=MAX_AGE_NS - 2 * STEP_NS)
    # the first alone, then two of three steps within the bound
    assert bench.commands(3) == [0.0, 1.0, 2.0]
    executed = bench.step()
    assert (executed.planned, executed.decision.kind) == (None, RungKind.RAMP)
    assert bench.controller.dropped == {'stale_action': 1}


def test_after_its_last_step_an_action_is_no_drop():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0)
    assert bench.commands(4) == [0.0, 1.0, 2.0, 3.0]
    bench.now_ns += MAX_AGE_NS
    bench.commands(3)
    assert bench.controller.dropped == {}


# between two actions


def test_a_robot_that_is_commanded_faster_moves_in_equal_steps():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0, 9.0)
    assert bench.commands(7) == [0.0, 1.0, 2.0, 3.0, 5.0, 7.0, 9.0]
    assert bench.queue.rows_taken == 3


def test_each_step_on_the_way_tells_the_action_it_leads_to():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0)
    assert [bench.step().planned.row for _ in range(4)] == [0, 1, 1, 1]


def test_what_somebody_clears_in_mid_step_is_not_finished():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0, 6.0)
    assert bench.commands(2) == [0.0, 1.0]
    bench.queue.clear()
    assert bench.step().planned is None
    bench.plan(50.0, 53.0, seq=2)
    # within the cage's bound, not on a way from the old action
    bench.measured = np.array([45.0])
    played = [bench.step() for _ in range(2)]
    assert [one.planned.source.seq for one in played] == [2, 2]
    assert [one.decision.wanted[0] for one in played] == pytest.approx([50.0, 51.0])


def test_what_is_cleared_and_filled_at_once_plays_nothing_old():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0)
    bench.commands(2)
    bench.queue.clear()
    bench.plan(6.0, 9.0, seq=2)
    assert bench.commands(4) == [6.0, 7.0, 8.0, 9.0]
    assert (bench.controller.stalls, bench.dries) == (0, 0)


def test_what_somebody_clears_is_no_stall():
    bench = Bench()
    bench.plan(1.0, 2.0)
    bench.step()
    bench.queue.clear()
    bench.commands(3)
    assert (bench.controller.stalls, bench.dries) == (0, 0)
    assert bench.controller.rung_reason == 'ramp: cleared'
    bench.commands(20)
    assert bench.controller.rung_reason == 'hold: cleared'
    bench.plan(1.0, 2.0, seq=2)
    bench.commands(3)
    assert (bench.controller.stalls, bench.controller.rung_reason) == (1, 'ramp: nothing_to_play')


def test_what_is_cleared_in_a_stall_is_a_stall():
    bench = Bench()
    bench.plan(1.0)
    bench.commands(2)
    bench.queue.clear()
    bench.step()
    assert (bench.controller.stalls, bench.controller.rung_reason) == (1, 'ramp: nothing_to_play')


def test_what_somebody_stops_is_no_stall_and_is_told_dry_only_when_he_is_done():
    bench = Bench()
    bench.plan(1.0, 2.0, 3.0)
    bench.step()
    bench.be(paused=True)
    bench.commands(20)
    assert (bench.controller.stalls, bench.dries) == (0, 0)
    bench.queue.clear()
    bench.be(paused=False)
    bench.commands(3)
    assert (bench.controller.stalls, bench.dries) == (0, 0)


@pytest.mark.parametrize('cause', ['episode', 'pause'])
def test_chunks_that_stay_away_after_an_episode_began_are_a_stall(cause):
    bench = Bench()
    bench.plan(1.0, 2.0, 3.0)
    bench.step()
    if cause == 'pause':
        bench.be(paused=True)
        bench.commands(3)
        bench.be(paused=False)
    bench.queue.clear()
    bench.commands(20)
    assert (bench.controller.stalls, bench.dries) == (0, 0)
    bench.be(state=ConnectionState.DEGRADED)
    bench.commands(20)
    assert (bench.controller.stalls, bench.dries) == (1, 1)
    bench.be(state=ConnectionState.STREAMING)
    bench.plan(1.0, seq=2)
    bench.commands(3)
    assert (bench.controller.stalls, bench.dries) == (2, 2)


def test_a_row_that_was_taken_and_not_played_is_not_where_the_next_steps_begin():
    bench = Bench(interpolation=2, resume_rows=3)
    bench.plan(0.0)
    bench.commands(2)
    # three are buffered, of which two turn out to be too old
    bench.plan(70.0, 71.0, age_ns=MAX_AGE_NS + 1)
    bench.plan(8.0, seq=2)
    assert bench.step().planned is None
    bench.plan(1.0, 2.0, 3.0, seq=3)
    assert [bench.step().decision.wanted[0] for _ in range(3)] == [1.0, 1.5, 2.0]


# the controller with its ladder, its orders and its cage: what it does instead, and how far


# the ladder


def test_without_actions_it_comes_to_rest_and_holds():
    bench = Bench()
    bench.plan(0.0, 9.0)
    bench.commands(2)
    executed = [bench.step() for _ in range(10)]
    kinds = [one.decision.kind for one in executed]
    assert kinds == [RungKind.RAMP] * 5 + [RungKind.HOLD] * 5
    positions = [one.judgement.command[0] for one in executed]
    assert positions == sorted(positions)
    assert 9.0 < positions[0] < positions[4] == positions[9]
    assert all(one.planned is None and one.age_ns == 0 for one in executed)
    assert bench.controller.rung is RungKind.HOLD
    assert bench.controller.rung_reason == 'hold: nothing_to_play'


def test_it_is_told_once_that_there_is_nothing_left():
    bench = Bench()
    for times in (1, 2, 3):
        bench.plan(1.0, 1.0)
        bench.commands(20)
        assert (bench.dries, bench.controller.stalls) == (times, times)


def test_single_rows_are_not_played_until_there_are_enough():
    bench = Bench(resume_rows=4)
    bench.plan(0.0)
    bench.commands(2)
    bench.plan(5.0, 6.0)
    assert bench.step().planned is None
    bench.plan(7.0, 8.0)
    # none of them was lost meanwhile
    assert bench.commands(4) == [5.0, 6.0, 7.0, 8.0]


def test_what_stays_few_is_played_after_a_while():
    bench = Bench(resume_rows=4)
    bench.plan(0.0)
    bench.commands(2)
    bench.plan(5.0)
    kinds = [bench.step().decision.kind for _ in range(5)]
    assert kinds == [RungKind.RAMP] * 4 + [RungKind.POLICY]
    assert bench.controller.stalls == 1


def test_at_the_end_of_a_ladder_nothing_is_commanded_until_the_stop_is_lifted():
    bench = Bench(arm(STEP), ladder=GIVING_UP)
    bench.plan(0.0)
    bench.step()
    falling = bench.commands(10)
    # the last with the call of the stop
    assert falling == [0.0] * 6 + [None] * 4
    assert bench.stops == 1
    bench.plan(1.0, 1.0)
    assert bench.commands(3) == [None] * 3
    # the arm was moved meanwhile
    bench.measured = np.array([50.0])
    bench.controller.clear_stop()
    assert bench.commands(2) == pytest.approx([50.0 - STEP, 50.0 - 2 * STEP])
    assert bench.stops == 1


# orders


def test_an_order_is_followed_at_the_next_step():
    bench = Bench()
    bench.plan(*np.arange(20.0))
    assert [bench.step().planned is None for _ in range(2)] == [False, False]
    bench.be(paused=True)
    executed = bench.step()
    assert (executed.planned, executed.decision.reason) == (None, 'ramp: paused')
    bench.commands(2)
    left = bench.queue.rows_left
    bench.be(paused=False)
    assert bench.step().planned
    assert bench.queue.rows_left == left - 1


def test_diverted_in_mid_step_the_step_is_not_finished():
    bench = Bench(interpolation=3)
    bench.plan(0.0, 3.0, 6.0)
    bench.commands(2)
    bench.be(paused=True)
    assert bench.step().decision.kind is RungKind.RAMP
    bench.be(paused=False)
    # begins with an action, not on the way from the one before
    assert bench.step().decision.wanted[0] == 6.0


def test_a_latched_cage_judges_again_when_it_is_told_to():
    bench = Bench(arm(STEP), latch_after_trips=2)
    bench.plan(9.0, 9.0, 9.0, 9.0, 0.5)
    assert bench.commands(2) == pytest.approx([STEP, 2 * STEP])
    assert bench.controller.latched
    assert bench.step().judgement.verdict == Verdict.STOPPED
    bench.controller.reset_cage()
    # a service that is called next sees it; the next step applies it
    assert not bench.controller.latched
    assert bench.step().judgement.verdict == Verdict.CLAMPED
    assert not bench.controller.latched


# the cage


def test_the_first_command_is_bounded_from_where_the_robot_is():
    bench = Bench(arm(STEP))
    bench.measured = np.array([4.0])
    bench.plan(9.0, 9.0)
    assert bench.commands(2) == pytest.approx([4.0 + STEP, 4.0 + 2 * STEP])
    assert bench.controller.cage_trips == 2


def test_between_two_steps_the_last_command_is_the_bound():
    bench = Bench(arm(STEP))
    bench.plan(9.0, 9.0)
    bench.step()
    bench.measured = np.array([-50.0])
    assert bench.commands(1) == pytest.approx([2 * STEP])


def test_rows_that_arrive_while_it_may_not_begin_do_not_pile_up():
    bench = Bench(tolerance_share=0.0)
    bench.measured = np.array([500.0])
    most = 0
    for _ in range(50):
        bench.plan(*np.zeros(5))
        bench.commands(5)
        most = max(most, bench.queue.rows_left)
    assert most <= 20
    assert bench.controller.dropped['stale_action'] == 250 - bench.queue.rows_left
    assert 'j0.pos is measured at 500' in bench.controller.start_blocked_by


def test_rows_that_arrive_in_the_midst_of_a_step_wait_for_a_start(monkeypatch):
    bench = Bench(start_samples=3)
    queue, rows_left = bench.queue, type(bench.queue).rows_left.fget

    def counted(_: object) -> int:
        left = rows_left(queue)
        if not left:
            bench.plan(1.0, 2.0, 3.0)
        return left

    monkeypatch.setattr(type(queue), 'rows_left', property(counted))
    assert bench.commands(3) == [None, None, 1.0]


def test_a_robot_that_is_nowhere_known_is_not_commanded_until_it_is():
    bench = Bench(arm(STEP))
    bench.measured = None
    bench.plan(0.9, 0.9)
    assert bench.commands(3) == [None] * 3
    assert bench.controller.start_blocked_by == 'position unknown: no measured state'
    assert (bench.controller.actions_executed, bench.controller.cage_trips) == (0, 0)
    assert (bench.queue.rows_left, bench.dries) == (2, 0)
    bench.measured = np.array([0.5])
    assert bench.commands(1) == pytest.approx([0.5 + STEP])
    assert bench.controller.start_blocked_by == ''


@pytest.mark.parametrize('bad', [nan, inf, -inf])
@pytest.mark.parametrize('interpolation', [1, 3])
def test_what_is_not_finite_repeats_the_last_command(bad, interpolation):
    bench = Bench(interpolation=interpolation)
    bench.plan(0.25, bad, 0.5)
    bench.step()
    for _ in range(interpolation):
        executed = bench.step()
        assert (executed.judgement.verdict, executed.judgement.command) == (Verdict.HELD, [0.25])
    assert bench.commands(interpolation)[-1] == 0.5


def test_a_state_may_force_an_action():
    bench = Bench(interlocks=(Interlock('full', 'level', None, 1.0, {'j0.pos': 0.0}),))
    bench.level = 0.5
    bench.plan(3.0, 3.0)
    assert bench.commands(1) == [3.0]
    bench.level = 1.5
    assert bench.commands(1) == [0.0]


def test_a_rung_passes_the_cage_as_well():
    ladder = (Rung(RungKind.REPEAT_LAST, 0.1), Rung(RungKind.HOLD))
    bench = Bench(
        interlocks=(Interlock('full', 'level', None, 1.0, {'j0.pos': 0.0}),), ladder=ladder
    )
    bench.level = 0.0
    bench.plan(3.0)
    bench.step()
    bench.level = 2.0
    executed = bench.step()
    assert executed.decision.kind is RungKind.REPEAT_LAST
    assert executed.judgement.command.tolist() == [0.0]
