# SPDX-License-Identifier: Apache-2.0
"""
Hand-overs at any moment, of robots with limits: no jump, no policy beside a person, and after a
hand-back nothing that was planned before it.
"""

from __future__ import annotations

from math import inf

from hypothesis import given, settings, strategies
import numpy as np
from support.edge.controller_rig import arm, Bench, MAX_AGE_NS, WAYS
from support.edge.requester_rig import Bench as Requests
from support.replacing import replace

from lerobot_serve.cage.description import Verdict
from lerobot_serve.edge.action_queue import ChunkSource, QueueMark
from lerobot_serve.edge.control.authority import ControlAuthority, Intervention
from lerobot_serve.edge.control.operator_control import OperatorControl
from lerobot_serve.edge.control.rungs import RungKind
from lerobot_serve.edge.control.step import ExecutedStep
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.robot.file_format import InterventionInput
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.takeover import (
    COMMAND,
    DeviceState,
    PersonInput,
    PersonTarget,
    Takeover,
)

MAX_STEP, LOW, HIGH = 0.5, -100.0, 100.0
LEADER = InterventionInput('leader', 'sensor_msgs/JointState', 0.05)


class Messages:
    def person_target(self, raw: tuple[float, ...], _: object) -> PersonTarget:
        return PersonTarget(np.array(raw))


class Robot:
    """A controller in the hands of an operator, with a device and a policy that plans."""

    def __init__(self, *, interpolation: int = 1, acceleration: float = inf) -> None:
        robot = arm(MAX_STEP, joints=2)
        actions = tuple(replace(each, max_acceleration=acceleration) for each in robot.actions)
        self.bench = Bench(replace(robot, actions=actions), interpolation=interpolation)
        self.dropped: list[str] = []
        self.device = PersonInput(
            self.bench.robot, LEADER, Messages(), count_dropped=self.dropped.append
        )
        requester = Requests().requester
        requester.begin_episode = lambda _: self.bench.queue.clear()
        requester.replan = lambda: self.bench.queue.clear(ends_episode=False)
        decisions = RobotDecisions()
        self.takeover = Takeover(self.device, decisions)
        self.operator = OperatorControl(
            self.bench.controller, requester, self.takeover, decisions, run_on_start=True
        )
        self.state = ConnectionState.STREAMING
        self.seq, self.asked_since = 0, 0
        self.in_flight: tuple[int, QueueMark, int] | None = None

    def command(self, *values: float) -> None:
        self.device.deposit([COMMAND], values, self.bench.now_ns, self.seq)

    def ask(self) -> None:
        """Request a chunk."""
        self.seq += 1
        self.in_flight = self.seq, self.bench.queue.mark(), self.bench.now_ns

    def answer(self, *rows: tuple[float, float]) -> None:
        """Merge the chunk of the request in flight."""
        if self.in_flight is None:
            return
        (seq, mark, asked_ns), self.in_flight = self.in_flight, None
        source = ChunkSource(seq, 7, 2, 'episode', asked_ns, 'prod', 'fake@0')
        self.bench.queue.replace(np.array(rows, np.float32), source, mark=mark, delay_rows=0)

    def plan(self, *rows: tuple[float, float]) -> None:
        self.ask()
        self.answer(*rows)

    def step(self) -> ExecutedStep | None:
        bench = self.bench
        bench.person = self.takeover.read(bench.now_ns)
        conditions = self.operator.update(bench.person.intervention)
        bench.orders = conditions._replace(state=self.state)
        executed = bench.step()
        if executed and executed.judgement.command is not None:
            # the robot is where it was commanded to be
            bench.measured = executed.judgement.command.copy()
        return executed

    def hand_back(self) -> None:
        if self.operator.hand_back()[0]:
            self.asked_since = self.seq + 1


def test_a_person_takes_over_at_the_next_step_without_a_jump():
    robot = Robot()
    robot.plan((0.5, 0.0), (1.0, 0.0), (1.5, 0.0), (2.0, 0.0))
    robot.step()
    robot.command(-3.0, 4.0)
    assert robot.operator.take_over()[0]
    executed = robot.step()
    assert executed.decision.kind is RungKind.PERSON
    assert (executed.source, executed.planned) == (ControlAuthority.PERSON, None)
    assert np.allclose(executed.judgement.command, (0.0, 0.5), atol=1e-8)
    assert executed.judgement.verdict is Verdict.PASS
    # what the policy would have done
    assert executed.policy_action.tolist() == [1.0, 0.0]
    for _ in range(20):
        robot.command(-3.0, 4.0)
        executed = robot.step()
    assert executed.judgement.command.tolist() == [-3.0, 4.0]
    assert robot.bench.controller.stalls == robot.bench.dries == 0


def test_a_lost_device_descends_the_ladder_and_not_to_the_policy():
    robot = Robot()
    robot.operator.take_over()
    robot.command(1.0, 1.0)
    robot.step()
    robot.plan(*[(0.1, 0.1)] * 50)
    for _ in range(4):
        executed = robot.step()
    assert executed.source is ControlAuthority.LADDER
    assert executed.decision.reason == 'ramp: person_lost'
    assert robot.bench.orders.intervention is Intervention.LOST
    assert 'no command on leader' in robot.takeover.lost_reason


def test_after_a_hand_back_nothing_planned_before_is_played():
    robot = Robot()
    robot.plan((0.5, 0.5), (1.0, 1.0))
    robot.step()
    robot.operator.take_over()
    robot.command(0.6, 0.6)
    robot.step()
    robot.plan((9.0, 9.0))
    robot.ask()
    robot.hand_back()
    robot.answer((8.0, 8.0))
    executed = robot.step()
    assert executed.source is ControlAuthority.LADDER
    robot.plan((0.7, 0.7))
    executed = robot.step()
    assert executed.source is ControlAuthority.POLICY
    assert executed.judgement.command.astype(np.float32).tolist() == [np.float32(0.7)] * 2
    assert robot.bench.controller.stalls == 0


def test_a_hand_back_says_what_the_robot_does():
    robot = Robot()
    connection = robot.operator._requester.connection

    def handed_back() -> str:
        robot.operator.take_over()
        robot.command(0.6, 0.6)
        robot.step()
        done, text = robot.operator.hand_back()
        assert done
        return text

    assert handed_back() == 'Handed back. The policy plans from the present state'
    robot.operator.pause()
    assert handed_back() == 'Handed back. Paused until ~/resume'
    robot.operator.resume()
    robot.operator.end_episode()
    assert 'No episode runs' in handed_back()
    robot.operator.begin_episode(EpisodeRequest('', 'next'))
    for event in WAYS[ConnectionState.DEAD]:
        connection.handle(event, 'gone')
    robot.state = ConnectionState.DEAD
    assert 'Connection dead (gone). No policy controls the robot. Teardown started' in (
        handed_back()
    )
    robot.bench.controller._cage.latch('a test')
    robot.operator.take_over()
    assert 'Safety cage latched' in robot.operator.hand_back()[1]


def test_the_pose_of_the_start_is_also_that_before_a_person_moves_the_robot():
    robot = Robot()
    robot.operator.take_over()
    robot.operator.begin_episode(EpisodeRequest('', 'next'))
    for _ in range(5):
        robot.command(0.6, 0.6)
        robot.step()
    assert robot.bench.ladder.initial_pose.tolist() == [0.0, 0.0]
    robot.hand_back()
    robot.plan((0.7, 0.7))
    robot.step()
    assert robot.bench.ladder.initial_pose.tolist() == [0.0, 0.0]


def test_a_hand_back_keeps_the_pose_of_the_start_of_the_episode():
    robot = Robot()
    robot.plan((0.5, 0.5))
    robot.step()
    start = robot.bench.ladder.initial_pose
    assert start is not None
    robot.operator.take_over()
    robot.command(0.6, 0.6)
    robot.step()
    robot.hand_back()
    robot.step()
    assert robot.bench.ladder.initial_pose is start
    robot.operator.begin_episode(EpisodeRequest('', 'next'))
    robot.step()
    assert robot.bench.ladder.initial_pose is None


def test_the_policy_is_asked_while_a_person_commands():
    robot = Robot()
    robot.operator.take_over()
    robot.command(1.0, 1.0)
    robot.step()
    assert not robot.operator._is_idle
    robot.operator.pause()
    robot.step()
    assert robot.operator._is_idle


def test_an_interpolation_goes_on_beside_the_person():
    robot = Robot(interpolation=2)
    robot.plan((0.2, 0.0), (0.4, 0.0), (0.6, 0.0))
    robot.step()
    robot.operator.take_over()
    robot.command(0.0, 0.0)
    found = [robot.step().policy_action[0] for _ in range(4)]
    assert np.allclose(found, [0.3, 0.4, 0.5, 0.6], atol=1e-6)


EVENTS = (
    *('take_over', 'hand_back', 'command', 'command', 'silence', 'plan', 'ask', 'answer'),
    *('pause', 'resume', 'reset', 'dead', 'alive', 'step', 'step', 'step', 'two', 'one'),
)
steps = strategies.lists(strategies.sampled_from(EVENTS), min_size=5, max_size=80)


@settings(max_examples=120)
@given(steps, strategies.randoms(use_true_random=False), strategies.sampled_from((inf, 40.0)))
def test_hand_overs_at_any_moment(sequence, random, acceleration):
    robot = Robot(acceleration=acceleration)
    last: np.ndarray | None = None
    for each in sequence:
        far = random.choice((1.0, 10.0, 200.0))
        values = [(random.uniform(-far, far), random.uniform(-far, far)) for _ in range(6)]
        taken = robot.takeover.is_taken_over
        if each == 'command':
            robot.command(*values[0])
        elif each == 'silence':
            robot.bench.now_ns += 10**8
        elif each == 'two':
            robot.device.blocked_by = DeviceState.TWO_SOURCES
        elif each == 'one':
            robot.device.blocked_by = None
        elif each == 'ask':
            robot.ask()
        elif each == 'answer':
            robot.answer(*values)
        elif each == 'plan':
            robot.plan(*values)
        elif each == 'reset':
            robot.operator.reset(EpisodeRequest(''))
        elif each == 'hand_back':
            robot.hand_back()
        elif each == 'dead':
            robot.state = ConnectionState.DEAD
        elif each == 'alive':
            robot.state = ConnectionState.STREAMING
        elif each == 'step':
            executed = robot.step()
            now_ns = robot.bench.now_ns
            if executed is None or executed.judgement.command is None:
                last = None
                continue
            command = executed.judgement.command
            if last is not None:
                assert (abs(command - last) <= MAX_STEP * (1 + 1e-9)).all()
            last = command
            assert np.isfinite(command).all()
            assert (command >= LOW).all()
            assert (command <= HIGH).all()
            if taken:
                assert executed.planned is None
                assert executed.source is not ControlAuthority.POLICY
            if executed.planned:
                assert executed.policy_action is None
                assert executed.planned.source.seq >= robot.asked_since
                assert now_ns - executed.planned.source.captured_ns <= MAX_AGE_NS + 20_000_000
            if executed.source is ControlAuthority.PERSON:
                assert taken
                assert executed.judgement.verdict is Verdict.PASS
                assert robot.device.blocked_by is None
        else:
            getattr(robot.operator, each)()
