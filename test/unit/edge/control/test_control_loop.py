# SPDX-License-Identifier: Apache-2.0
"""The beat of the robot: what happens in a control step, in which order, and how it ends."""

from __future__ import annotations

from dataclasses import replace
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, GIVING_UP
from support.edge.edge_transport_rig import ROBOT, STATE

from lerobot_serve.cage.description import Motion
from lerobot_serve.edge.control.authority import ControlAuthority, OperatingConditions
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.loop import ControlLoop, StateReader
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.inputs.latest import LatestInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.wire.errors import Malformed


class Beat:
    """So many beats, then the end."""

    def __init__(self, beats: int) -> None:
        self.beats = self.missed = 0
        self._left = beats

    def wait(self, stop: threading.Event) -> bool:
        self._left -= 1
        self.beats += 1
        return self._left >= 0


class Arm(EdgeListener):
    """Everything that a ticker calls, in the order of the calls."""

    def __init__(self, bench: Bench, beats: int, *, commands_per_action: int = 1) -> None:
        self.calls: list[tuple] = []
        self.bench, self.beat = bench, Beat(beats)
        self.operation = SimpleNamespace(look=self._look, say=ControlAuthority.POLICY)
        history = SimpleNamespace(tick=lambda step, now_ns: self._note('history', step))
        self.ticker = ControlLoop(
            self.beat,
            bench.controller,
            self.operation,
            history,
            lambda now_ns: bench.sense(),
            self,
            command=lambda executed, tick: self._note('command', tick),
            rest=lambda values: self._note('rest', *values),
            stop=lambda: self._note('stop'),
            commands_per_action=commands_per_action,
            clock=lambda: bench.now_ns,
        )

    def _look(self) -> OperatingConditions:
        self._note('look')
        return self.bench.orders

    def _note(self, *call: object) -> None:
        self.calls.append(call)

    def ticked(
        self,
        now_ns: int,
        tick: int,
        executed: ExecutedStep | None,
        controller: Controller,
        say: ControlAuthority,
    ) -> None:
        self._note('told', tick, executed is not None)

    def run(self) -> list[tuple]:
        self.ticker.run(threading.Event())
        return self.calls


def test_a_step_notes_looks_commands_and_tells_in_this_order():
    bench = Bench()
    bench.plan(0.5)
    assert Arm(bench, 1).run() == [
        ('history', 1),
        ('look',),
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
    robot.beat._left, bench.now_ns = 1, bench.now_ns + 10**9
    bench.be(state=ConnectionState.DEAD)
    robot.calls.clear()
    assert [call[0] for call in robot.run()][-2:] == ['stop', 'told']


def test_velocities_are_brought_to_rest_however_it_ends():
    robot = arm()
    wheel = replace(robot.actions[0], motion=Motion.VELOCITY)
    bench = Bench(replace(robot, actions=(wheel,)))
    bench.plan(0.5)
    driven = Arm(bench, 1)
    driven.ticked = lambda *_: 1 / 0
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
