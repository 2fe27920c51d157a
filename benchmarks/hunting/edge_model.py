# SPDX-License-Identifier: Apache-2.0
"""
A whole edge in virtual time: controller, ladder, cage, queue, requester, states and operation as
its node wires them, with servers, a robot and an operator.

`step` lets one control step pass, with all that falls into it; the other methods are what an
operator, the world or an accident does between two steps. The checker sees what crosses the
boundary, and raises Violation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import contextlib
from dataclasses import dataclass
import heapq
from itertools import count
from pathlib import Path
from random import Random
import shutil
import tempfile
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.hunting.edge_invariants import EdgeBounds, EdgeInvariants, S
from benchmarks.hunting.edge_person import ModelPerson, PersonMessages
from benchmarks.hunting.edge_servers import EdgeModelServers, SILENT
from benchmarks.hunting.stepped_thread import SteppedThread
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.edge import wiring
from lerobot_serve.edge.action_queue import DELAY_RULES
from lerobot_serve.edge.control.loop import ControlLoop
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.decisions import Decision, RobotDecisions, save
from lerobot_serve.edge.episode_runner import EpisodeRunner
from lerobot_serve.edge.inputs.state_reader import StateReader, StepInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.inbox import Inbox
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.wiring import EdgeCore
from lerobot_serve.links.link import Presence
from lerobot_serve.parameters import build_parameters, ParameterError
from lerobot_serve_interfaces.action import RunEpisode

FPS = 10
CLIENT = 'hunted'
PRESENCE_LEASE_S = 2.0
# state_timeout_s
SILENCE_NS = S // 2
MAX_LEAD = (0.5, 0.3, 1e9)
SERVERS = '/near', '/far'
# the last action carries the marks: it may go anywhere in a step
ROBOT = """
name: hunted
fps: 10
state:
- {topic: joint_states, joints: [swing, lift, mark], max_age_s: 0.35}
cameras: {}
actions:
  swing.pos: {joint: swing, min: -2.0, max: 2.0, max_step: 0.2, max_lead: 0.5}
  lift.pos: {joint: lift, min: -1.0, max: 1.0, max_step: 0.1, max_lead: 0.3}
  mark.pos: {joint: mark, min: -10.0, max: 1000000.0, max_step: 1000000.0}
command: {topic: command}
safe_pose: {swing.pos: 1.0, lift.pos: 0.5, mark.pos: 0.0}
intervention: {topic: leader, timeout_s: 0.25, deadman: {topic: joy, button: 0}}
"""
PERSON_TIMEOUT_NS = S // 4
LOW, HIGH = (-2.0, -1.0, -10.0), (2.0, 1.0, 1e6)
MAX_STEP = (0.2, 0.1, 1e6)
# what a hunt varies from run to run
CHOICES: dict[str, tuple[object, ...]] = {
    'run_on_start': (True, False),
    'teardown': ('hold', 'safe_pose', 'initial_pose', 'stop_service'),
    'while_paused': ('hold', 'no_command'),
    'merge_mode': ('replace', 'append'),
    'rtc': (False, True),
    'interpolation_multiplier': (1, 1, 1, 2),
    'latch_after_trips': (0, 150, 8),
    'fallback_ladder': (
        (),
        ('repeat_last 0.2', 'ramp 1', 'safe_pose 1', 'stop_service'),
        ('hold',),
    ),
    'skip_rule': tuple(DELAY_RULES),
    'servers': (SERVERS, SERVERS[:1]),
}
FIXED = {
    'request_timeout_s': 0.5,
    'request_threshold_s': 0.5,
    'max_action_age_s': 1.0,
    'degraded_after_s': 0.3,
    'max_offline_s': 2.0,
    'reconnect_initial_backoff_s': 0.1,
    'reconnect_max_backoff_s': 0.5,
    'stop_service': '/stop',
}


@dataclass(slots=True)
class StepCounter:
    """As ros.node.fixed_rate_loop has it; the model counts."""

    cycles: int = 0
    missed: int = 0
    due_ns: int = 0


class VirtualTimeInbox(Inbox):
    """An inbox whose waits pass in virtual time."""

    def __init__(self, model: EdgeModel) -> None:
        super().__init__(CLIENT, model.clock)
        self._model, self._arrived = model, deque()

    def take(self, wait_s: float) -> tuple[bytes, int] | None:
        self._model.sleep(int(wait_s * S), until=lambda: self._arrived)
        return self._arrived.popleft() if self._arrived else None

    def sleep(self, seconds: float) -> None:
        self._model.sleep(int(seconds * S), until=lambda: False)

    def _put(self, item: tuple[bytes, int] | None) -> None:
        self._arrived.append(item)


class DecisionsOnDisk(RobotDecisions):
    """Each decision is on the disk at once; how long that takes is no matter of the hunt."""

    def decide(self, decision: Decision, reason: str = '') -> None:
        super().decide(decision, reason)
        save(decision, self.path(decision), self.reason(decision))

    def lift(self, decision: Decision) -> None:
        super().lift(decision)
        save(decision, self.path(decision), None)

    def settle(self, decision: Decision) -> str:
        return ''


class ArrayMessages:
    """Inputs are arrays already."""

    def state_vector(self, raws: list[np.ndarray], sources: tuple) -> np.ndarray:
        if not np.isfinite(raws[0]).all():
            raise Malformed('not_finite', 'hunted')
        return np.array(raws[0], np.float64)


def fuzzed_robot() -> RobotDescription:
    """Return the robot, read as any other."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / 'robot.yaml'
        file.write_text(ROBOT)
        return wiring.load_robot(file)


class EdgeModel:
    """See the module; one thread drives it."""

    def __init__(self, seed: int, **choices: object) -> None:
        """`choices` take the place of what the seed would draw."""
        self.random = Random(seed)
        self.robot = fuzzed_robot()
        self.choices, self.parameters = self._draw(choices)
        self.now_ns = 1000 * S
        self.period_ns = int(S * self.parameters.command_period_s(self.robot.fps))
        self.where = np.array([0.3, -0.2, 0.0])
        self.sensing, self._misread = True, np.zeros(3)
        self._sensed_ns = self.now_ns
        # samples that wait in the middleware since the process stood still
        self._waiting: deque[tuple[np.ndarray, int]] = deque()
        self.checker = EdgeInvariants(self._bounds())
        self.servers = EdgeModelServers(
            self.parameters.servers,
            self.checker,
            self.random,
            clock=self.clock,
            deliver=self._deliver,
            sleep=lambda ns: self.sleep(ns, until=lambda: False),
            later=self._at,
            captured_ns=lambda: self._sensed_ns,
        )
        self._turns: SteppedThread | None = None
        self.leader = ModelPerson()
        # the disk; nothing else outlives the process
        self.folder = Path(tempfile.mkdtemp(prefix='hunt'))
        self._begin()

    def _draw(self, given: dict[str, object]) -> tuple[dict[str, object], EdgeParameters]:
        """Return choices that go together, and the parameters with them."""
        while True:
            drawn = {name: self.random.choice(values) for name, values in CHOICES.items()}
            choices = {**drawn, **given}
            with contextlib.suppress(ParameterError):
                return choices, build_parameters(EdgeParameters, {**FIXED, **choices})

    def _bounds(self) -> EdgeBounds:
        parts = self.parameters.interpolation_multiplier
        return EdgeBounds(
            LOW,
            HIGH,
            tuple(step / parts for step in MAX_STEP),
            self.period_ns,
            int(self.parameters.max_action_age_s * S),
            int(self.parameters.request_timeout_s * S),
            rest_ns=3 * S,
            silence_ns=SILENCE_NS,
            max_lead=MAX_LEAD,
            run_on_start=self.parameters.run_on_start,
            interpolated=parts > 1,
        )

    # wiring, as edge.node does it

    def _begin(self) -> None:
        """Start the process."""
        self._future: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()
        self._wake_ns: int | None = None
        self._has_woken = lambda: False
        self.checker.restarted(self.now_ns)
        parameters, robot = self.parameters, self.robot
        self.inbox = VirtualTimeInbox(self)
        core = self._core = EdgeCore(
            parameters,
            robot,
            self.inbox,
            DecisionsOnDisk(self.folder),
            listener=EdgeListener(),
            on_change=lambda change: None,
            liveliness_lease_s=PRESENCE_LEASE_S,
            resolve_topic=str,
        )
        self.connection, self.controller, self.inputs = (
            core.connection,
            core.controller,
            core.inputs,
        )
        self.requester = core.make_requester(self.servers, self.servers, random=self.random.random)
        self.takeover = core.make_takeover(PersonMessages())
        self.operation = core.make_operator_control(self.requester, self.takeover)
        self.rate = StepCounter()
        self.loop = self._make_loop()
        self.runs = EpisodeRunner(self.controller, self.operation, self.requester, self.clock)
        self._executed: Any = None
        self._stop_called = False
        self._sense()
        self._turns = SteppedThread(self.requester.run)
        # what it does first, it does in the first step

    def _make_loop(self) -> ControlLoop:
        state = StateReader(self.inputs, ArrayMessages(), self.robot)
        return ControlLoop(
            self.rate,
            self.controller,
            self.operation,
            StepInputs(self._core.history, state, self.parameters.interpolation_multiplier),
            self,
            listener=EdgeListener(),
            clock=self.clock,
        )

    # time

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, wait_ns: int, until: Callable[[], object]) -> None:
        """The requester's thread: let time pass, at most so much of it."""
        self._wake_ns, self._has_woken = self.now_ns + wait_ns, until
        while self.now_ns < self._wake_ns and not until():
            self._turns.wait()
        self._wake_ns = None

    def _deliver(self, delay_ns: int, raw: bytes) -> None:
        self._at(delay_ns, lambda: self._arrive(raw))

    def _at(self, delay_ns: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._future, (self.now_ns + delay_ns, next(self._numbers), act))

    def _pass(self, end_ns: int) -> None:
        """Let time pass until then, with what is due by then, in order."""
        while True:
            self._settle()
            due_ns = [at_ns for at_ns, *_ in self._future[:1]]
            if self._wake_ns is not None:
                due_ns.append(self._wake_ns)
            at_ns = min(due_ns, default=end_ns)
            if at_ns > end_ns:
                break
            self.now_ns = max(self.now_ns, at_ns)
            while self._future and self._future[0][0] <= self.now_ns:
                heapq.heappop(self._future)[2]()
        self.now_ns = max(self.now_ns, end_ns)

    def _settle(self) -> None:
        """Let the requester do all that it can do now."""
        while self._wake_ns is None or self._wake_ns <= self.now_ns or self._has_woken():
            if self._turns.ended:
                return
            self._turns.go()

    def _arrive(self, raw: bytes) -> None:
        try:
            header = wire_chunk.decode(raw).header
        except Malformed:
            pass
        else:
            self.checker.arrived((header.session_epoch, header.episode, header.seq))
        self.inbox.put_reply(raw)

    # what crosses the boundary

    def send_step(self, executed: Any, control_step: int, is_old: Callable[[], bool]) -> bool:
        if not is_old():
            self._executed = executed
        return self._executed is executed

    def send_command(self, command: np.ndarray) -> bool:
        return True

    def call_stop_service(self, reason: str) -> None:
        self._stop_called = True

    def _sense(self) -> None:
        if self._waiting:
            read, taken_ns = self._waiting.popleft()
        elif self.sensing:
            read, taken_ns = self.where + self._misread, self.now_ns
            self._misread = np.zeros(len(read))
        else:
            return
        self.inputs.deposit('state from joint_states', read, self.now_ns, taken_ns)
        self._sensed_ns = taken_ns
        self.checker.sensed(tuple(map(float, read)), taken_ns, self.now_ns)

    # rules

    def step(self, late_ns: int = 0) -> None:
        """One control step, perhaps a late one."""
        self._pass(self.now_ns + self.period_ns + late_ns)
        self._sense()
        self._control()

    def _control(self) -> None:
        self.rate.cycles += 1
        self.leader.deposit(self.takeover.device, self.now_ns)
        self._executed, where = None, tuple(map(float, self.where))
        self.loop.run_step()
        executed = self._executed
        command = executed.judgement.command if executed else None
        if command is not None:
            self.where = np.clip(np.array(command, np.float64), LOW, HIGH)
        plays = executed is not None and executed.decision.kind is RungKind.POLICY
        free = plays and executed.judgement.verdict.name in ('PASS', 'CLAMPED')
        told = None if command is None else tuple(map(float, command))
        if executed is not None and executed.decision.kind is RungKind.PERSON:
            may_command = self.leader.may_command(self.now_ns, PERSON_TIMEOUT_NS)
            self.checker.person_commanded(told, self.now_ns, where, may_command=may_command)
        else:
            self.checker.commanded(told, self.now_ns, where, plays=free, free=free)
        if self._stop_called:
            self._stop_called = False
            self.checker.stop_called(self.now_ns)
        if self.controller.latched:
            self.checker.latched(self.now_ns)
        self._look()
        if self.rate.cycles % 100 == 0:
            self.checker.forget(self.now_ns - 60 * S)

    def stall(self, stall_ns: int, moved: float, waiting: int) -> None:
        """
        The process stands still; somebody moves the robot by so much in the midst of it. The next
        control step is the first thing that happens. Then so many samples of that time are read
        one after the other, as well as the command of a leader arm that was let go meanwhile. They
        are read faster than they were sent.
        """
        begin_ns, before = self.now_ns, self.where
        # after a shorter stall what waited may count as younger by it
        most = stall_ns // (3 * self.period_ns) if stall_ns > SILENCE_NS else 0
        waiting = min(waiting, most)
        self.now_ns += stall_ns
        self.where = np.clip(before + np.array([moved, -moved / 2, 0.0]), LOW, HIGH)
        shares = [(i + 1) / (waiting + 1) for i in range(waiting)]
        self._waiting.extend(
            (before if share < 0.5 else self.where, begin_ns + int(share * stall_ns))
            for share in shares
        )
        self.leader.waits = waiting
        self._control()

    def _look(self) -> None:
        """As the node's timer does."""
        before = self.runs.current
        result = self.runs.poll()
        if before and result and result.outcome != RunEpisode.Result.DEAD:
            self.checker.operator('end', self.now_ns)

    def pause(self) -> None:
        self.operation.pause()
        self.checker.operator('pause', self.now_ns)

    def resume(self) -> None:
        self.operation.resume()
        self.checker.operator('resume', self.now_ns)

    def reset(self) -> None:
        """The service ~/reset."""
        self.checker.operator('reset', self.now_ns)
        self.operation.reset(EpisodeRequest('reach'))

    def run(self, max_duration_s: float = 0.0) -> None:
        """A goal of RunEpisode, which may be refused."""
        goal = RunEpisode.Goal(task='reach', max_duration_s=max_duration_s)
        if not self.runs.refusal(goal):
            self.checker.operator('begin', self.now_ns)
            self.runs.begin(goal)

    def cancel(self) -> None:
        if self.runs.current:
            self.runs.cancel()
            self.checker.operator('end', self.now_ns)
            self._look()

    def judge(self, outcome: int) -> None:
        """Somebody says how the run has ended."""
        if self.runs.current:
            self.runs.on_outcome(
                SimpleNamespace(
                    episode_id=self.runs.current.episode_id, outcome=outcome, text='hunted'
                )
            )

    def reset_cage(self) -> None:
        self.operation.reset_cage()
        self.checker.operator('reset_cage', self.now_ns)

    def take_over(self) -> None:
        """The service ~/take_over, which may be refused."""
        if self.operation.take_over()[0]:
            self.checker.taken_over()

    def hand_back(self) -> None:
        """The service ~/hand_back, which may be refused."""
        if self.operation.hand_back()[0]:
            self.checker.handed_back(self.now_ns)

    def set_leader(self, name: str, value: object) -> None:
        """The person does something: pose, is_held, is_sending or are_two."""
        setattr(self.leader, name, value)

    def set_mood(self, server: str, mood: str) -> None:
        if server in self.servers.all:
            was_alive = self.servers.all[server].is_alive
            self.servers.all[server].mood = mood
            is_alive = self.servers.all[server].is_alive
            if was_alive is not is_alive:
                self._note_writer(server, is_alive=is_alive)

    def _note_writer(self, server: str, *, is_alive: bool) -> None:
        """The middleware says whether a server's writer to this robot is alive."""
        is_silent = self.servers.all[server].mood == SILENT
        lost = Presence.EXPIRED if is_silent else Presence.CLOSED
        self._core.liveliness.update(server, Presence.THERE if is_alive else lost)

    def swap_policy(self, server: str, policy: str) -> None:
        if server in self.servers.all:
            self.servers.all[server].policy = policy

    def set_sensing(self, is_on: bool) -> None:
        """Joint states come, or do not."""
        self.sensing = is_on

    def misread(self, by: float) -> None:
        """One sample of the joints is wrong."""
        self._misread = np.array([by, -by / 2, 0.0])

    def restart(self) -> None:
        """The process is killed and started again; the robot stays where it is."""
        self._end()
        self._begin()

    def close(self) -> None:
        """End the requester, and remove the disk."""
        self._end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self) -> None:
        if self._turns and not self._turns.ended:
            self.requester.close()
            while not self._turns.ended:
                self.now_ns = max(self.now_ns, self._wake_ns or 0)
                self._turns.go()

    @property
    def state(self) -> ConnectionState:
        return self.connection.state
