# SPDX-License-Identifier: Apache-2.0
"""
The control loop: one control step per period, each of which may command the robot.

The tick thread runs it. Plain: reading the state and the output to the robot are injected.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
from typing import Protocol

from lerobot_serve.arrays import Float64Array
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.inputs.state_reader import StepInputs
from lerobot_serve.edge.observability.listener import EdgeListener


class LoopRate(Protocol):
    """Steady period; implemented by ros.node.fixed_rate_loop."""

    cycles: int
    missed: int

    def wait(self, stop: threading.Event) -> bool:
        """Wait for the next period; return False when `stop` is set."""


class RobotOutput(Protocol):
    """The output to the robot; implemented by edge.ros.robot_commands."""

    def send_step(
        self, executed: ExecutedStep, control_step: int, is_old: Callable[[], bool]
    ) -> bool:
        """
        Send the command of a step, if it has one, and publish the record of it; return False and
        do neither if another edge commands the robot, or the command `is_old` at the last moment.
        """

    def send_command(self, command: Float64Array) -> bool:
        """
        Send a command without a record, as the last one when the loop ends; return whether it was.
        """

    def call_stop_service(self, reason: str) -> None:
        """Call the stop service without waiting."""


class ControlLoop:
    """Runs the controller, once per period of `rate`."""

    def __init__(
        self,
        rate: LoopRate,
        controller: Controller,
        operator: OperatorControl,
        inputs: StepInputs,
        output: RobotOutput,
        *,
        listener: EdgeListener,
        clock: Callable[[], int],
    ) -> None:
        self._rate, self._controller, self._operator = rate, controller, operator
        self._history, self._read_state = inputs.history, inputs.read_state
        self._commands_per_action = inputs.commands_per_action
        self._send_step, self._send_command = output.send_step, output.send_command
        self._call_stop_service = output.call_stop_service
        self._listener, self._clock = listener, clock

    def run(self, stop: threading.Event) -> None:
        """Run a step per period until `stop` is set."""
        try:
            while self._rate.wait(stop):
                self.run_step()
        finally:
            # without a command velocities would continue
            rest = self._controller.rest(self._clock())
            if rest is not None:
                self._send_command(rest)

    def run_step(self) -> None:
        """Run one step."""
        now_ns = self._clock()
        number = self._rate.cycles + self._rate.missed
        if number % self._commands_per_action == 0:
            # the history follows the policy rate, not the command rate
            self._history.record(number // self._commands_per_action, now_ns)
        person = self._operator.takeover.read(now_ns)
        conditions = self._operator.update(person.intervention)
        executed, call_stop_service = self._controller.step(
            now_ns, partial(self._read_state, now_ns), conditions, person
        )
        # a skipped step counts as missed and has no number
        control_step = self._rate.cycles - self._controller.steps_skipped
        if self._controller.silence:
            self._history.restart()
            self._operator.takeover.forget()
        if executed and not self._send_step(executed, control_step, self._stood_still):
            executed = None
        if call_stop_service:
            self._call_stop_service(self._controller.rung_reason)
        # after the command is sent
        self._listener.step_finished(
            now_ns, control_step, executed, self._controller, self._operator.authority
        )

    def _stood_still(self) -> bool:
        """Return whether the robot may have been moved since this step began."""
        return self._controller.stood_still(self._clock())
