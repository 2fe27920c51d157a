"""
The beat of the robot: one control step after the other, each of which may command it.

The tick thread runs it. Plain but for what it is given: how to sense, to command and to stop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
from typing import Protocol

import numpy as np

from lerobot_serve.edge.controller import Controller
from lerobot_serve.edge.history import History
from lerobot_serve.edge.inputs import Inputs, NotReady
from lerobot_serve.edge.listener import Listener
from lerobot_serve.edge.operation import Operation
from lerobot_serve.edge.outside import Messages
from lerobot_serve.edge.preparation import state_inputs
from lerobot_serve.edge.robot.description import Robot
from lerobot_serve.edge.robot.measured import measured, measuring
from lerobot_serve.edge.step import Executed, Sensed
from lerobot_serve.wire.errors import Malformed


class Beat(Protocol):
    """As ros.beat has it."""

    beats: int
    missed: int

    def wait(self, stop: threading.Event) -> bool: ...


class Senses:
    """What the newest inputs say of the robot."""

    def __init__(self, inputs: Inputs, messages: Messages, robot: Robot) -> None:
        self._inputs, self._messages, self._sources = inputs, messages, robot.state
        self._names, self._measuring = state_inputs(robot), measuring(robot)

    def __call__(self, now_ns: int) -> Sensed:
        try:
            newest = [self._inputs.newest(name, now_ns) for name in self._names]
            state = self._messages.state([raw for raw, _ in newest], self._sources)
        except (NotReady, Malformed):
            return Sensed()
        arrived_ns = tuple(at_ns for _, at_ns in newest)
        return Sensed(state, measured(state, self._measuring), arrived_ns)


class Ticker:
    """
    See the module. `command` is given what to send and the number of the step, `rest` what to send
    last of all; `stop` calls the stop service. `ticks_a_step` are the commands for one step of the
    policy.
    """

    def __init__(
        self,
        beat: Beat,
        controller: Controller,
        operation: Operation,
        history: History,
        senses: Callable[[int], Sensed],
        listener: Listener,
        *,
        command: Callable[[Executed, int], None],
        rest: Callable[[np.ndarray], None],
        stop: Callable[[], None],
        ticks_a_step: int,
        clock: Callable[[], int],
    ) -> None:
        self._beat, self._controller, self._operation = beat, controller, operation
        self._history, self._senses, self._listener = history, senses, listener
        self._command, self._rest, self._stop = command, rest, stop
        self._ticks_a_step, self._clock = ticks_a_step, clock

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop` is set."""
        try:
            while self._beat.wait(stop):
                self._tick()
        finally:
            # silence would let velocities go on
            rest = self._controller.rest()
            if rest is not None:
                self._rest(rest)

    def _tick(self) -> None:
        now_ns = self._clock()
        number = self._beat.beats + self._beat.missed
        if number % self._ticks_a_step == 0:
            # a policy's steps are those of its rate, however often the robot is commanded
            self._history.tick(number // self._ticks_a_step, now_ns)
        orders = self._operation.look()
        executed, call_stop = self._controller.step(now_ns, partial(self._senses, now_ns), orders)
        # one that was skipped is a missed one, and has no number
        tick = self._beat.beats - self._controller.ticks_skipped
        if executed:
            self._command(executed, tick)
        if call_stop:
            self._stop()
        # when the robot has its command
        self._listener.ticked(now_ns, tick, executed, self._controller, self._operation.say)
