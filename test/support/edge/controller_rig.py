# SPDX-License-Identifier: Apache-2.0
"""A controller with its queue, ladder and cage, and a robot that stands where a test puts it."""

from __future__ import annotations

from functools import partial
from math import inf

import numpy as np

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import ActionLimit, CageResult, Interlock, LastCommand, Motion
from lerobot_serve.edge.action_queue import ActionQueue, ChunkSource
from lerobot_serve.edge.control.authority import OperatingConditions
from lerobot_serve.edge.control.clamp_alarm import ClampAlarm
from lerobot_serve.edge.control.controller import Controller
from lerobot_serve.edge.control.ladder import Ladder
from lerobot_serve.edge.control.playback import ActionPlayback, Interpolator
from lerobot_serve.edge.control.pose_tracker import ManualMoveDetector, PoseTracker, StartPosition
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.control.step import ExecutedStep, StepSettings
from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.robot.description import CommandOutput, RobotDescription
from lerobot_serve.edge.session.connection import ConnectionEvent, ConnectionState
from lerobot_serve.edge.takeover import PersonCommand
from lerobot_serve.edge.wiring import before_start

STEP_S = 0.02
STEP_NS = 20_000_000
MAX_AGE_NS = 10 * STEP_NS
RAMP_S = 0.1
LADDER = (Rung(RungKind.RAMP, RAMP_S), Rung(RungKind.HOLD))
GIVING_UP = (Rung(RungKind.RAMP, RAMP_S), Rung(RungKind.STOP_SERVICE))
# what leads to each state
WAYS = {
    ConnectionState.CONNECTING: (),
    ConnectionState.STREAMING: (ConnectionEvent.CHUNK_MERGED,),
    ConnectionState.DEGRADED: (ConnectionEvent.CHUNK_MERGED, ConnectionEvent.REQUEST_FAILED),
    ConnectionState.STALLED: (ConnectionEvent.CHUNK_MERGED, ConnectionEvent.QUEUE_EMPTY),
    ConnectionState.RECONNECTING: (ConnectionEvent.CHUNK_MERGED, ConnectionEvent.SESSION_LOST),
    ConnectionState.DEAD: (
        ConnectionEvent.CHUNK_MERGED,
        ConnectionEvent.SESSION_LOST,
        ConnectionEvent.INCOMPATIBLE,
    ),
}


def arm(max_step: float = 10.0, joints: int = 1) -> RobotDescription:
    actions = tuple(
        ActionLimit(f'j{i}.pos', f'j{i}', Motion.POSITION, -100.0, 100.0, max_step)
        for i in range(joints)
    )
    command = CommandOutput('std_msgs/Float64MultiArray', 'command')
    return RobotDescription('robot', 1 / STEP_S, (), (), actions, command)


class Spy(Cage):
    """Remembers what it let out."""

    released: list[np.ndarray | None]

    def judge(self, wanted: object, last: LastCommand | None, **known: object) -> CageResult:
        judgement = super().judge(wanted, last, **known)
        self.released = [*getattr(self, 'released', [])[-1:], judgement.command]
        return judgement


class Bench:
    """`step` is one tick; each of `interpolation` is a part of a step of the policy."""

    def __init__(
        self,
        robot: RobotDescription | None = None,
        *,
        interpolation: int = 1,
        resume_rows: int = 1,
        latch_after_trips: int = 0,
        interlocks: tuple[Interlock, ...] = (),
        ladder: tuple[Rung, ...] = LADDER,
        teardown: tuple[Rung, ...] = GIVING_UP,
        has_stop_service: bool = True,
        is_silent_while_paused: bool = False,
        start_samples: int = 1,
        tolerance_share: float = inf,
        state_timeout_s: float = inf,
        decisions: RobotDecisions | None = None,
    ) -> None:
        self.robot = robot or arm()
        self.queue, self.dries = ActionQueue(), 0
        self.decisions = decisions or RobotDecisions()
        self.ladder = Ladder(
            ladder,
            self.robot,
            step_s=STEP_S,
            resume_rows=resume_rows,
            teardown=teardown,
            has_stop_service=has_stop_service,
            stopped_by=before_start(self.decisions, Decision.STOPPED),
            on_stop=partial(self.decisions.decide, Decision.STOPPED),
        )
        self.cage = Spy(
            self.robot.actions,
            interlocks,
            ('level',),
            step_s=STEP_S,
            latch_after_trips=latch_after_trips,
            latched_by=before_start(self.decisions, Decision.LATCHED),
            on_latch=partial(self.decisions.decide, Decision.LATCHED),
        )
        start = StartPosition(
            self.cage.limits, samples=start_samples, tolerance_share=tolerance_share
        )
        self.controller = Controller(
            ActionPlayback(self.queue, self.ladder, Interpolator(interpolation), MAX_AGE_NS),
            self.ladder,
            self.cage,
            PoseTracker(
                start,
                ManualMoveDetector(self.cage.limits),
                silence_ns=int(min(1e9 * state_timeout_s, 1e18)),
                unseen_ns=int(min(1e9 * state_timeout_s, 1e18)),
            ),
            StepSettings(STEP_NS, is_silent_while_paused),
            alarm=ClampAlarm((), window_steps=0, window_s=0.0),
            on_queue_empty=self._on_queue_empty,
        )
        self.orders = OperatingConditions()
        self.person = PersonCommand()
        self.measured: np.ndarray | None = np.zeros(len(self.robot.actions))
        self.level = inf
        self.now_ns, self.asked = 1_000_000_000, 0
        self.stops = 0

    def _on_queue_empty(self) -> None:
        self.dries += 1

    def sense(self) -> RobotState:
        self.asked += 1
        return RobotState(np.array([self.level]), self.measured)

    def plan(self, *rows: float | list[float], age_ns: int = 0, seq: int = 1) -> None:
        """Append a chunk whose observation is that old."""
        chunk = np.array(rows, np.float32).reshape(len(rows), -1)
        source = ChunkSource(seq, 7, 2, 'episode', self.now_ns - age_ns, 'prod', 'fake@0')
        self.queue.append(chunk, source, mark=self.queue.mark())

    def step(self) -> ExecutedStep | None:
        executed, call_stop_service = self.controller.step(
            self.now_ns, self.sense, self.orders, self.person
        )
        self.stops += call_stop_service
        self.now_ns += STEP_NS
        return executed

    def be(self, **orders: object) -> None:
        """Change what is decided outside of the control step."""
        self.orders = self.orders._replace(**orders)

    def commands(self, steps: int) -> list[float | None]:
        """Return what the first joint is told in so many steps."""
        return [_first(self.step()) for _ in range(steps)]


def _first(executed: ExecutedStep | None) -> float | None:
    if executed is None or executed.judgement.command is None:
        return None
    return float(executed.judgement.command[0])
