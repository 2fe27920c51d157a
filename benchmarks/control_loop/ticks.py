# SPDX-License-Identifier: Apache-2.0
"""
How punctual the control tick is, beside a thread that only sleeps.

The real tick body in a process as the edge's is: a queue that another thread fills, ladder, cage
of 14 joints, the command and its record published over ROS, inputs arriving at 100 Hz. The
sleeping thread runs at the same time in a process of its own. Lateness is how long after its
moment a tick begins.
"""

from __future__ import annotations

import json
from pathlib import Path
import subprocess
import sys
import threading
import time

from builtin_interfaces.msg import Time
import numpy as np
from sensor_msgs.msg import JointState

from benchmarks.harness.processes import module_command
from benchmarks.results.percentiles import ratio
from benchmarks.results.report import Case
from lerobot_serve.cage.description import ActionLimit, Motion
from lerobot_serve.edge import wiring
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.observability.reports import executed_action
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.command_messages import command_message, COMMAND_MESSAGES
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription
from lerobot_serve.ros import qos
from lerobot_serve.ros.node.fixed_rate_loop import FixedRateLoop
from lerobot_serve.ros.node.steady_clock import SteadyClockNode
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.tools.processes import end_with_parent
from lerobot_serve_interfaces.msg import ExecutedAction

ABOUT = 'lateness of the control tick beside a thread that only sleeps'
RATES_HZ, JOINTS, SECONDS, CHUNK_ROWS, WARM_UP_TICKS = (50, 200), 14, 10.0, 100, 20
PARAMETERS = {'joints': JOINTS, 'seconds': SECONDS, 'inputs_hz': 100}
GOAL = 1.5


def measure(rounds: int, folder: Path) -> list[Case]:
    """Return one case for each rate. Main thread."""
    return [measure_rate(rate_hz) for rate_hz in RATES_HZ]


def measure_rate(rate_hz: int) -> Case:
    """Run both for SECONDS, side by side."""
    command = module_command('control_loop.ticks', rate_hz, SECONDS)
    with subprocess.Popen(end_with_parent(command), stdout=subprocess.PIPE, text=True) as sleeper:
        late_ms, body_ms, missed = measure_control_steps(rate_hz)
        alone_ms = json.loads(sleeper.communicate(timeout=SECONDS + 20)[0])
    p99 = [float(np.percentile(values, 99)) for values in (late_ms, alone_ms)]
    return Case(
        f'{rate_hz} Hz',
        parameters={'p99 tick/sleeper': round(p99[0] / p99[1], 2)},
        counts={'ticks': len(late_ms), 'missed': missed},
        series_ms={'tick late': late_ms, 'sleeper late': alone_ms, 'tick body': body_ms},
        ratios={'late, tick/sleeper': ratio(late_ms, alone_ms)},
        goals={f'p99 of lateness at most {GOAL} x the sleeper': p99[0] <= GOAL * p99[1]},
    )


def robot(rate_hz: int) -> RobotDescription:
    actions = tuple(
        ActionLimit(f'j{i}.pos', f'j{i}', Motion.POSITION, -2.0, 2.0, 0.1) for i in range(JOINTS)
    )
    output = CommandOutput('trajectory_msgs/JointTrajectory', 'bench/command')
    return RobotDescription('bench', rate_hz, (), (), actions, output)


class MeasuredControlLoop(SteadyClockNode):
    """The tick thread's part of the edge, with everything else kept busy."""

    def __init__(self, runtime: NodeRuntime, rate_hz: int) -> None:
        super().__init__('tick', context=runtime.context)
        self._robot, self._actions = robot(rate_hz), ActionQueue()
        self._controller: Controller = wiring.make_controller(
            EdgeParameters(), self._robot, RobotDecisions(), self._actions, lambda: None
        )
        message_class = COMMAND_MESSAGES[self._robot.command.type].message_class
        self._commands = self.create_publisher(
            message_class, 'bench/command', qos.command(1 / rate_hz)
        )
        self._records = self.create_publisher(
            ExecutedAction, 'bench/executed', qos.EXECUTED_ACTION
        )
        self._joints = self.create_publisher(JointState, 'bench/joints', qos.SENSOR)
        self.create_subscription(JointState, 'bench/joints', lambda _: None, qos.SENSOR, raw=True)
        names = [f'j{i}' for i in range(JOINTS)]
        self._state = JointState(name=names, position=[0.0] * JOINTS)
        self.create_timer(0.01, lambda: self._joints.publish(self._state))
        self._sensed = RobotState(None, np.zeros(JOINTS))

    def fill(self) -> None:
        """Put a chunk into the queue, as the request thread does."""
        now_ns = time.monotonic_ns()
        source = ChunkSource(1, 1, 1, 'bench', now_ns, 'prod', 'bench@0')
        chunk = np.zeros((CHUNK_ROWS, JOINTS), np.float32)
        self._actions.replace(chunk, source, mark=self._actions.mark(), delay_rows=0, model=chunk)

    def tick(self, number: int) -> None:
        """Do what the edge does in one step."""
        executed, _ = self._controller.step(time.monotonic_ns(), lambda: self._sensed)
        if executed:
            stamp: Time = self.get_clock().now().to_msg()
            self._commands.publish(
                command_message(
                    executed.judgement.command, self._robot, stamp, 1 / self._robot.fps
                )
            )
            self._records.publish(
                executed_action(executed, stamp=stamp, control_step=number, client_id='bench')
            )


def measure_control_steps(rate_hz: int) -> tuple[list[float], list[float], int]:
    """Return lateness and duration of each tick [ms], and how many were missed."""
    runtime = NodeRuntime([])
    try:
        ticker = MeasuredControlLoop(runtime, rate_hz)
        runtime.add(ticker)
        runtime.spin_in_background()
        ticker.fill()
        runtime.thread('filler', lambda: fill_now_and_then(ticker, runtime.stop))
        return timed(rate_hz, ticker.tick, runtime.stop)
    finally:
        runtime.close()


def fill_now_and_then(ticker: MeasuredControlLoop, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        ticker.fill()


def timed(rate_hz: int, act, stop: threading.Event) -> tuple[list[float], list[float], int]:
    """Beat for SECONDS; what happens in the first ticks is not counted."""
    late_ms, body_ms = [], []
    beat = FixedRateLoop(int(1e9 / rate_hz))
    for number in range(WARM_UP_TICKS + int(SECONDS * rate_hz)):
        due_ns = beat.due_ns
        beat.wait(stop)
        begin_ns = time.monotonic_ns()
        act(number)
        if number >= WARM_UP_TICKS:
            late_ms.append(max(0, begin_ns - due_ns) / 1e6)
            body_ms.append((time.monotonic_ns() - begin_ns) / 1e6)
    return late_ms, body_ms, beat.missed


def main() -> None:
    """Be the thread that only sleeps: python3 -m benchmarks.control_loop.ticks RATE SECONDS."""
    late_ms, _, _ = timed(int(sys.argv[1]), lambda _: None, threading.Event())
    print(json.dumps(late_ms))


if __name__ == '__main__':
    main()
