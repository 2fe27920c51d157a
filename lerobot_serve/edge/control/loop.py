# SPDX-License-Identifier: Apache-2.0
"""
The control loop: one control step per period, each of which may command the robot.

The tick thread runs it. Plain: reading the state, commands and the stop service are injected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
from typing import Protocol

import numpy as np

from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.control.step import ExecutedStep, RobotState
from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.latest import InputsNotReady, LatestInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.robot.measurement import measured_values, measuring_indices
from lerobot_serve.edge.session.policy_server_transport import MessageReader
from lerobot_serve.edge.wiring import state_input_names
from lerobot_serve.wire.errors import Malformed


class LoopRate(Protocol):
    """Steady period; implemented by ros.node.fixed_rate_loop."""

    beats: int
    missed: int

    def wait(self, stop: threading.Event) -> bool: ...


class StateReader:
    """Decodes the latest state inputs into the state of the robot."""

    def __init__(
        self, inputs: LatestInputs, messages: MessageReader, robot: RobotDescription
    ) -> None:
        self._inputs, self._messages, self._sources = inputs, messages, robot.state
        self._names, self._measuring = state_input_names(robot), measuring_indices(robot)

    def __call__(self, now_ns: int) -> RobotState:
        try:
            newest = [self._inputs.newest(name, now_ns) for name in self._names]
            state = self._messages.state_vector([raw for raw, _ in newest], self._sources)
        except (InputsNotReady, Malformed):
            return RobotState()
        arrived_ns = tuple(at_ns for _, at_ns in newest)
        return RobotState(state, measured_values(state, self._measuring), arrived_ns)


class ControlLoop:
    """
    Runs the controller. `command` receives each command and the number of its step, `rest` the
    final command; `stop` calls the stop service. `commands_per_action` is the number of commands
    per step of the policy.
    """

    def __init__(
        self,
        beat: LoopRate,
        controller: Controller,
        operation: OperatorControl,
        history: ObservationHistory,
        senses: Callable[[int], RobotState],
        listener: EdgeListener,
        *,
        command: Callable[[ExecutedStep, int], None],
        rest: Callable[[np.ndarray], None],
        stop: Callable[[], None],
        commands_per_action: int,
        clock: Callable[[], int],
    ) -> None:
        self._beat, self._controller, self._operation = beat, controller, operation
        self._history, self._read_state, self._listener = history, senses, listener
        self._command, self._rest, self._stop = command, rest, stop
        self._commands_per_action, self._clock = commands_per_action, clock

    def run(self, stop: threading.Event) -> None:
        """Run a step per period until `stop` is set."""
        try:
            while self._beat.wait(stop):
                self._tick()
        finally:
            # without a command velocities would continue
            rest = self._controller.rest()
            if rest is not None:
                self._rest(rest)

    def _tick(self) -> None:
        now_ns = self._clock()
        number = self._beat.beats + self._beat.missed
        if number % self._commands_per_action == 0:
            # the history follows the policy rate, not the command rate
            self._history.tick(number // self._commands_per_action, now_ns)
        orders = self._operation.look()
        executed, call_stop_service = self._controller.step(
            now_ns, partial(self._read_state, now_ns), orders
        )
        # a skipped step counts as missed and has no number
        tick = self._beat.beats - self._controller.ticks_skipped
        if executed:
            self._command(executed, tick)
        if call_stop_service:
            self._stop()
        # after the command is sent
        self._listener.ticked(now_ns, tick, executed, self._controller, self._operation.say)
