# SPDX-License-Identifier: Apache-2.0
"""A control step: what it does from silence and for an interlock, in which order, how it ends."""

from __future__ import annotations

from collections.abc import Callable
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, GIVING_UP, MAX_AGE_NS, STEP_NS
from support.edge.edge_transport_rig import ROBOT, STATE
from support.replacing import replace

from lerobot_serve.cage.description import Interlock, Motion
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.control.authority import (
    ControlAuthority,
    Intervention,
    OperatingConditions,
)
from lerobot_serve.edge.control.controller import Controller, STARVED_NS
from lerobot_serve.edge.control.loop import ControlLoop
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.inputs.state_reader import StateReader, StepInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.takeover import Takeover

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


class Beat:
    """So many cycles, then the end."""

    def __init__(self, cycles: int) -> None:
        self.cycles = self.missed = 0
        self._left = cycles

    def wait(self, stop: threading.Event) -> bool:
        self._left -= 1
        self.cycles += 1
        return self._left >= 0


class Arm(EdgeListener):
    """Everything that a control loop calls, in the order of the calls."""

    def __init__(self, bench: Bench, cycles: int, *, commands_per_action: int = 1) -> None:
        self.calls: list[tuple] = []
        self.bench, self.rate = bench, Beat(cycles)
        operator = SimpleNamespace(
            update=self._update,
            authority=ControlAuthority.POLICY,
            takeover=Takeover(None, RobotDecisions()),
        )
        history = SimpleNamespace(record=lambda step, now_ns: self._note('history', step))
        self.loop = ControlLoop(
            self.rate,
            bench.controller,
            operator,
            StepInputs(history, lambda now_ns: bench.sense(), commands_per_action),
            self,
            listener=self,
            clock=lambda: bench.now_ns,
        )

    def send_step(
        self, executed: ExecutedStep, control_step: int, is_old: Callable[[], bool]
    ) -> bool:
        self._note('command', control_step)
        return True

    def send_command(self, command: np.ndarray) -> bool:
        self._note('rest', *command)
        return True

    def call_stop_service(self, reason: str) -> None:
        self._note('stop', reason)

    def _update(self, intervention: Intervention) -> OperatingConditions:
        assert intervention is Intervention.NONE
        self._note('update')
        return self.bench.orders

    def _note(self, *call: object) -> None:
        self.calls.append(call)

    def step_finished(
        self,
        now_ns: int,
        control_step: int,
        executed: ExecutedStep | None,
        controller: Controller,
        authority: ControlAuthority,
    ) -> None:
        self._note('told', control_step, executed is not None)

    def run(self) -> list[tuple]:
        self.loop.run(threading.Event())
        return self.calls


def test_a_step_notes_looks_commands_and_tells_in_this_order():
    bench = Bench()
    bench.plan(0.5)
    assert Arm(bench, 1).run() == [
        ('history', 1),
        ('update',),
        ('command', 1),
        ('told', 1, True),
    ]


def test_a_step_without_a_command_is_told_too():
    assert ('told', 1, False) in Arm(Bench(), 1).run()


def test_the_history_has_the_steps_of_the_policy():
    robot = Arm(Bench(), 6, commands_per_action=3)
    assert [call for call in robot.run() if call[0] == 'history'] == [
        ('history', 1),
        ('history', 2),
    ]


def test_the_stop_service_is_called_before_anybody_is_told():
    bench = Bench(teardown=GIVING_UP[1:])
    bench.plan(0.5)
    robot = Arm(bench, 1)
    robot.run()
    robot.rate._left, bench.now_ns = 1, bench.now_ns + 10**9
    bench.be(state=ConnectionState.DEAD)
    robot.calls.clear()
    *_, stop, told = robot.run()
    assert (stop, told[0]) == (('stop', 'stop_service: given_up'), 'told')


def test_velocities_are_brought_to_rest_however_it_ends():
    robot = arm()
    wheel = replace(robot.actions[0], motion=Motion.VELOCITY)
    bench = Bench(replace(robot, actions=(wheel,)))
    bench.plan(0.5)
    driven = Arm(bench, 1)
    driven.step_finished = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        driven.run()
    assert driven.calls[-1] == ('rest', 0.0)


def senses(state: object) -> StateReader:
    inputs = LatestInputs({STATE: 10**9})
    inputs.deposit(STATE, b'raw', 0)

    def opened(raws: list[bytes], sources: tuple) -> np.ndarray:
        assert (raws, sources) == ([b'raw'], ROBOT.state)
        if isinstance(state, Exception):
            raise state
        return state

    return StateReader(inputs, SimpleNamespace(state_vector=opened), ROBOT)


def test_the_robot_is_where_the_newest_inputs_say():
    sensed = senses(np.array([0.25, 0.5]))(10)
    assert sensed.state.tolist() == [0.25, 0.5]
    assert sensed.arrived_ns == (0,)


@pytest.mark.parametrize(
    ('state', 'now_ns'), [(Malformed('wrong_shape', 'bad'), 10), (np.zeros(2), 2 * 10**9)]
)
def test_inputs_that_are_bad_or_old_say_nothing(state, now_ns):
    sensed = senses(state)(now_ns)
    assert (sensed.state, sensed.measured) == (None, None)
