# SPDX-License-Identifier: Apache-2.0
"""What a control step does from silence, while it holds, and for an interlock in every state."""

from __future__ import annotations

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, MAX_AGE_NS, STEP_NS

from lerobot_serve.cage.description import Interlock
from lerobot_serve.edge.control.controller import STARVED_NS
from lerobot_serve.edge.fallback.rungs import Rung, RungKind
from lerobot_serve.edge.session.connection import ConnectionState

STEP = 0.125
POSE = (Rung(RungKind.INITIAL_POSE, 9.0), Rung(RungKind.STOP_SERVICE))
FULL = Interlock('full', 'level', None, 1.0, {'j0.pos': -1.0})


def place(bench: Bench, *where: float) -> None:
    bench.measured = np.array(where)


# from silence


def test_one_misread_sample_never_becomes_a_command():
    bench = Bench(arm(STEP), start_samples=3)
    bench.plan(*[0.5] * 9)
    place(bench, 6.28)
    assert bench.commands(1) == [None]
    place(bench, 0.0)
    assert bench.commands(2) == [None, None]
    # no row was lost meanwhile
    assert bench.commands(4) == pytest.approx([STEP, 2 * STEP, 3 * STEP, 0.5])
    assert (bench.controller.stalls, bench.dries) == (0, 0)


def test_what_stands_far_outside_its_limits_is_not_commanded():
    bench = Bench(arm(STEP), tolerance_share=0.05)
    place(bench, 111.0)
    bench.plan(*[0.5] * 3)
    assert bench.commands(3) == [None] * 3
    assert 'j0.pos is measured at 111' in bench.controller.start_blocked_by
    place(bench, 109.0)
    assert bench.commands(1) == pytest.approx([109.0 - STEP])


def test_after_a_pause_that_commands_nothing_samples_have_to_agree_again():
    bench = Bench(arm(STEP), start_samples=3, is_silent_while_paused=True)
    bench.plan(*[0.0] * 9)
    bench.commands(5)
    bench.be(paused=True)
    assert bench.commands(9) == [None] * 9
    bench.be(paused=False)
    place(bench, 6.28)
    bench.plan(*[0.0] * 9)
    assert bench.commands(2) == [None, None]
    place(bench, 0.5)
    assert bench.commands(2) == [None, None]
    assert bench.commands(1) == pytest.approx([0.5 - STEP])


def test_a_latched_robot_that_was_moved_begins_where_it_is():
    bench = Bench(arm(STEP), latch_after_trips=1)
    bench.plan(float('nan'), *[0.0] * 9)
    bench.commands(3)
    assert bench.controller.latched
    place(bench, 5.0)
    bench.controller.reset_cage()
    assert bench.commands(1) == pytest.approx([5.0 - STEP])


# while it holds


@pytest.mark.parametrize('orders', [{'paused': True}, {'running': False}, {}])
def test_a_robot_that_is_moved_by_hand_while_it_holds_stays_where_it_is_put(orders):
    bench = Bench(arm(STEP))
    bench.plan(0.0, 0.0)
    bench.commands(2)
    bench.be(**orders)
    bench.commands(9)
    assert bench.controller.rung is RungKind.HOLD
    place(bench, 1.5)
    # silent for a step, then no way back to where it was
    assert bench.commands(4) == [None, 1.5, 1.5, 1.5]


def test_a_joint_that_is_blocked_by_what_it_holds_is_not_let_go():
    bench = Bench(arm(STEP))
    bench.plan(0.0, 0.0)
    bench.commands(2)
    place(bench, 4.0)
    bench.be(paused=True)
    assert bench.commands(9) == [0.0] * 9
    # what it holds is squeezed a little
    place(bench, 3.5)
    assert bench.commands(9) == [0.0] * 9
    # and pulled away from it
    place(bench, 5.5)
    assert bench.commands(3) == [None, 5.5, 5.5]


def test_a_pause_takes_no_joint_back_that_stands_outside():
    bench = Bench(arm(STEP))
    place(bench, 105.0)
    bench.plan(105.0)
    assert bench.commands(1) == pytest.approx([105.0 - STEP])
    bench.be(paused=True)
    held = bench.commands(9)
    # it comes to rest on its way and goes no further
    assert held[-1] == held[-2] == held[-3] > 104.0


# an interlock, whatever else is so

SITUATIONS = {
    'before the first chunk': {},
    'paused': {'paused': True},
    'between episodes': {'running': False},
    'given up': {'state': ConnectionState.DEAD},
}


@pytest.mark.parametrize('orders', SITUATIONS.values(), ids=SITUATIONS)
@pytest.mark.parametrize('is_silent', [False, True])
def test_an_interlock_acts_from_silence_and_leaves_silence_behind(orders, is_silent):
    bench = Bench(arm(STEP, joints=2), interlocks=(FULL,), is_silent_while_paused=is_silent)
    place(bench, 0.0, 7.0)
    bench.be(**orders)
    bench.level = 0.0
    assert bench.commands(3) == [None] * 3
    bench.level = 2.0
    executed = bench.step()
    assert executed.judgement.command == pytest.approx([-STEP, 7.0])
    assert executed.judgement.reason == 'full overrides j0.pos'
    assert bench.commands(20)[-1] == -1.0
    bench.level = 0.0
    left = bench.commands(9)
    holds = orders in ({'paused': True}, {'running': False}) and not (
        is_silent and orders == {'paused': True}
    )
    assert left[-1] == (-1.0 if holds else None)
    assert {command for command in left if command is not None} <= {-1.0}


def test_an_interlock_acts_after_a_stop_by_service():
    bench = Bench(arm(STEP), ladder=(Rung(RungKind.STOP_SERVICE),), interlocks=(FULL,))
    bench.level = 0.0
    bench.plan(0.0, 0.0)
    bench.commands(6)
    assert bench.controller.stopped
    bench.level = 2.0
    assert bench.commands(20)[-1] == -1.0
    bench.level = 0.0
    assert bench.commands(5)[-1] is None
    assert bench.controller.stopped
    assert bench.stops == 1


def test_an_interlock_acts_while_the_cage_is_latched():
    bench = Bench(arm(STEP), latch_after_trips=1, interlocks=(FULL,))
    bench.level = 0.0
    bench.plan(float('nan'))
    bench.plan(0.0, 0.0, float('nan'))
    bench.commands(9)
    assert bench.controller.latched
    bench.level = 2.0
    assert bench.commands(20)[-1] == -1.0
    assert bench.controller.latched


def test_a_sensor_that_says_it_stands_far_outside_its_limits_moves_nothing():
    bench = Bench(arm(STEP), start_samples=3, tolerance_share=0.05)
    bench.commands(3)
    bench.plan(*[0.01 * i for i in range(9)])
    bench.commands(40)
    assert bench.controller.rung is RungKind.HOLD
    place(bench, 400.0)
    commands = [command for command in bench.commands(20) if command is not None]
    assert max(commands, default=0.0) <= 0.1
    assert bench.commands(1) == [None]
    bench.plan(*[0.1] * 9)
    assert bench.commands(3) == [None] * 3
    assert 'j0.pos is measured at 400' in bench.controller.start_blocked_by


# the pose in which the episode began


def test_a_teardown_returns_to_where_the_episode_began():
    bench = Bench(arm(STEP), teardown=POSE)
    place(bench, 0.75)
    bench.plan(*np.linspace(0.75, 2.0, 20))
    bench.commands(20)
    bench.be(state=ConnectionState.DEAD)
    way = [command for command in bench.commands(600) if command is not None]
    assert way[-1] == pytest.approx(0.75)
    # a quarter of its speed
    assert max(abs(np.diff(way))) <= STEP / 4 + 1e-9
    assert bench.stops == 1


def test_each_episode_has_a_begin_of_its_own():
    bench = Bench(arm(STEP), teardown=POSE)
    bench.plan(*[0.0] * 3)
    bench.commands(3)
    bench.queue.clear()
    bench.commands(20)
    place(bench, 0.0)
    bench.plan(*np.linspace(0.0, 1.0, 20))
    bench.commands(20)
    bench.queue.clear()
    place(bench, 1.0)
    bench.plan(*np.linspace(1.0, 2.0, 20))
    bench.commands(20)
    bench.be(state=ConnectionState.DEAD)
    way = [command for command in bench.commands(300) if command is not None]
    assert way[-1] == pytest.approx(1.0)


# two actions at once


def test_no_action_past_its_age_is_mixed_in_and_the_older_age_is_reported():
    bench = Bench(interpolation=4)
    bench.plan(0.0, age_ns=MAX_AGE_NS - 2 * STEP_NS, seq=1)
    bench.plan(8.0, age_ns=0, seq=2)
    ages, commands = [], []
    for _ in range(5):
        executed = bench.step()
        commands.append(executed.judgement.command[0])
        ages.append(executed.age_ns // STEP_NS)
    # after two steps the first is too old: what is left of the way is the second alone
    assert commands == [0.0, 2.0, 4.0, 8.0, 8.0]
    assert ages == [8, 9, 10, 3, 4]


def test_no_teardown_returns_to_where_an_earlier_episode_began():
    bench = Bench(arm(STEP), teardown=POSE)
    bench.plan(*np.linspace(0.0, 1.0, 9))
    bench.commands(40)
    # the next one begins, and plays nothing
    bench.queue.clear()
    held = bench.commands(20)[-1]
    bench.be(state=ConnectionState.DEAD)
    assert {command for command in bench.commands(300) if command is not None} == {held}


def test_a_session_without_a_chunk_is_reported_as_an_empty_queue_again():
    bench = Bench()
    bench.plan(1.0)
    bench.commands(3)
    assert bench.dries == 1
    bench.be(state=ConnectionState.DEGRADED)
    steps = STARVED_NS // STEP_NS
    bench.commands(steps)
    assert bench.dries == 1
    bench.commands(1)
    assert bench.dries == 2
    # not where there are actions, and not while an operator has paused
    bench.plan(*[1.0] * 5)
    bench.commands(5)
    bench.be(paused=True)
    bench.commands(3 * steps)
    assert bench.dries == 2
    assert bench.controller.stalls == 1
