# SPDX-License-Identifier: Apache-2.0
"""The controller: no stale action, no command without an action, no jump in between."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.controller_rig import Bench, MAX_AGE_NS, STEP_NS

from lerobot_serve.edge.fallback.rungs import RungKind
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
