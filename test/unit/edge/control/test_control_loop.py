# SPDX-License-Identifier: Apache-2.0
"""The beat of the robot: what happens in a control step, in which order, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, GIVING_UP
from support.edge.edge_transport_rig import ROBOT, STATE

from lerobot_serve.cage.description import Motion
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge.control.authority import (
    ControlAuthority,
    Intervention,
    OperatingConditions,
)
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.loop import ControlLoop
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.inputs.state_reader import StateReader, StepInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.takeover import Takeover


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
