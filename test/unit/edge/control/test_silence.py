# SPDX-License-Identifier: Apache-2.0
"""
A robot that was not seen, or whose edge stood still, may have been moved: nothing is commanded
until new samples agree, and then from where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from support.edge.controller_rig import arm, Bench, STEP_NS

from lerobot_serve.cage.description import Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.edge.control.authority import ControlAuthority
from lerobot_serve.edge.control.loop import ControlLoop
from lerobot_serve.edge.control.pose_tracker import ManualMoveDetector, PoseTracker, StartPosition
from lerobot_serve.edge.control.rungs import Rung, RungKind
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState, StepInputs
from lerobot_serve.edge.observability.listener import EdgeListener
from lerobot_serve.edge.robot.description import RobotDescription
from lerobot_serve.edge.session.connection import ConnectionState
from lerobot_serve.edge.takeover import Takeover

STEP = 0.125
SILENCE_S = 0.1
SILENCE_NS = 100_000_000
MS = 1_000_000


# which samples count


class Watch:
    """A tracker, and the samples and steps that it gets; all times in ms."""

    def __init__(self, unseen_ns: int = SILENCE_NS) -> None:
        limits = MotionLimits(arm(STEP).actions, 0.02)
        start = StartPosition(limits, samples=3, tolerance_share=inf)
        self.tracker = PoseTracker(
            start, ManualMoveDetector(limits), silence_ns=SILENCE_NS, unseen_ns=unseen_ns
        )

    def step(self, at: int, arrived: int, sent: int = 0, *, moves: bool = False) -> bool:
        """Take a step; return whether the robot is known."""
        here = np.zeros(1)
        state = RobotState(here, here, (arrived * MS,), (sent * MS,))
        self.tracker.update(state, at * MS, plays=False, moves=moves)
        return not self.tracker.start_blocked_by()

    def begin(self) -> int:
        """Let the robot be known at 100 ms, with a sample at each step of 20 ms."""
        known = [self.step(at, at, at) for at in range(20, 120, 20)]
        assert known == [False, False, True, True, True]
        return 100


def test_a_gap_of_just_the_bound_is_no_silence():
    watch = Watch()
    at = watch.begin()
    assert watch.step(at + 100, at + 100, at + 100)
    assert not watch.step(at + 201, at + 201, at + 201)
    assert watch.tracker.silence.startswith('this process stood still')


def test_a_gap_is_silence_also_where_states_come_seldom():
    watch = Watch(unseen_ns=10 * SILENCE_NS)
    at = watch.begin()
    assert all(watch.step(at + i, at) for i in range(20, 300, 20))
    assert not watch.step(at + 400, at)


def test_what_is_there_in_the_first_step_after_a_gap_does_not_count():
    watch = Watch()
    at = watch.begin() + 500
    steps = [watch.step(at + i, at + i, at + i) for i in range(0, 80, 20)]
    assert steps == [False, False, False, True]


def test_what_was_there_before_the_gap_is_not_new():
    watch = Watch()
    at = watch.begin()
    assert not any(watch.step(at + 500 + i, at) for i in range(0, 80, 20))


def test_samples_that_waited_do_not_count():
    watch = Watch()
    at = watch.begin() + 500
    # of each 10 ms of the gap one sample; five of them are taken in each step
    steps = [watch.step(at + 20 * i, at + 20 * i, at - 500 + 50 * i) for i in range(10)]
    assert not any(steps)
    begin = at + 200
    live = [watch.step(begin + 20 * i, begin + 20 * i, begin + 20 * i) for i in range(3)]
    assert live == [False, False, True]


def test_one_that_waited_for_long_is_no_neighbour_of_one_that_did_not():
    watch = Watch()
    at = watch.begin() + 500
    watch.step(at, at - 500, at - 500)
    steps = [watch.step(at + 20, at + 20, at - 300)]
    steps += [watch.step(at + i, at + i, at + i) for i in (40, 60, 80)]
    assert steps == [False, False, False, True]


def test_a_clock_that_stood_still_with_the_process_is_noticed_by_that_of_the_sender():
    watch = Watch()
    at = watch.begin()
    # a virtual machine that was paused for 2 s
    steps = [watch.step(at + i, at + i, at + 2000 + i) for i in (20, 40, 60)]
    assert steps == [False, False, True]
    # a clock of a sender that is set back, or that says nothing, is no silence
    assert watch.step(at + 80, at + 80, 0)
    assert watch.step(at + 100, at + 100, 0)


def test_short_gaps_without_a_new_sample_are_silence_too():
    watch = Watch()
    at = watch.begin()
    assert watch.step(at + 60, at)
    assert not watch.step(at + 120, at)
    assert watch.tracker.silence.startswith('no new state came')


def test_joints_that_move_come_to_rest_before_a_robot_that_is_not_seen_falls_silent():
    watch = Watch()
    at = watch.begin()
    assert watch.step(at + 50, at, moves=True)
    assert watch.step(at + 100, at, moves=True)
    assert not watch.tracker.unseen_reason()
    assert watch.step(at + 120, at, moves=True)
    assert watch.tracker.unseen_reason() == 'state is missing or stale'
    # and at once when a sample comes: it may be elsewhere
    assert not watch.step(at + 140, at + 140, at + 140, moves=True)


def test_joints_do_not_come_to_rest_on_a_way_that_was_interrupted():
    watch = Watch()
    at = watch.begin()
    assert watch.step(at + 60, at, moves=True)
    # no gap that is silence, and no sample for longer than that
    assert not watch.step(at + 120, at, moves=True)


# the whole controller


def known(robot: RobotDescription | None = None, **options: object) -> Bench:
    """Return a robot that plays a policy."""
    bench = Bench(robot or arm(STEP), state_timeout_s=SILENCE_S, start_samples=3, **options)
    bench.commands(2)
    bench.plan(*[0.01 * i for i in range(9)])
    assert bench.commands(3)[-1] is not None
    return bench


def test_actions_that_were_planned_before_are_not_played_after():
    bench = known()
    # as young as they are: the robot is elsewhere
    bench.plan(*[0.5] * 50, age_ns=-10 * STEP_NS)
    mark = bench.queue.mark()
    bench.now_ns += SILENCE_NS
    bench.measured = np.array([5.0])
    assert bench.commands(6) == [None] * 6
    assert (bench.queue.rows_left, bench.queue.mark().epoch) == (0, mark.epoch + 1)
    bench.plan(0.0, 0.0)
    assert bench.commands(2) == pytest.approx([5.0 - STEP, 5.0 - 2 * STEP])


def test_one_misread_sample_is_not_where_a_robot_is():
    bench = known()
    bench.now_ns += SILENCE_NS
    place = iter([0.0, 50.0, 0.05, 0.05])
    commands = []
    for where in place:
        bench.measured = np.array([where])
        commands += bench.commands(1)
        bench.plan(*[0.1] * 9)
    assert commands == [None] * 4
    assert bench.commands(2)[0] is None
    bench.plan(*[0.1] * 9)
    assert bench.commands(1) == pytest.approx([0.1])


@pytest.mark.parametrize('state', [ConnectionState.STREAMING, ConnectionState.DEAD])
def test_a_stop_that_the_ladder_owes_is_called_though_nothing_is_commanded(state):
    way = (Rung(RungKind.RAMP, 0.1), Rung(RungKind.HOLD, 0.2), Rung(RungKind.STOP_SERVICE))
    bench = known(ladder=way, teardown=way)
    bench.queue.clear(ends_episode=False)
    bench.be(state=state)
    assert bench.commands(8)[-1] is not None
    bench.now_ns += SILENCE_NS
    assert bench.commands(20) == [None] * 20
    assert (bench.stops, bench.controller.stopped) == (1, True)


def wheels(joints: int) -> RobotDescription:
    """Return a robot whose first joint is a velocity."""
    robot = arm(STEP, joints=joints)
    drive = replace(robot.actions[0], motion=Motion.VELOCITY, low=-1.0, high=1.0)
    return replace(robot, actions=(drive, *robot.actions[1:]))


def test_wheels_that_went_on_during_a_gap_stop_at_once():
    bench = known(wheels(1))
    bench.plan(*[0.5] * 9)
    bench.commands(4)
    bench.now_ns += SILENCE_NS
    assert bench.commands(3) == [0.0, None, None]


def test_wheels_below_an_arm_stop_as_soon_as_it_is_known_where_the_arm_is():
    bench = known(wheels(2))
    bench.queue.clear(ends_episode=False)
    bench.plan(*[[0.5, 0.0]] * 9)
    bench.commands(4)
    bench.now_ns += SILENCE_NS
    bench.measured = np.array([0.0, 4.0])
    executed = [bench.step() for _ in range(5)]
    assert executed[:3] == [None] * 3
    assert executed[3].judgement.command.tolist() == [0.0, 4.0]
    assert executed[3].decision.reason == 'hold: silence'


# what the loop does with it


class Stalled:
    """A loop whose process stands still between the command and its sending."""

    def __init__(self, bench: Bench, stall_ns: int) -> None:
        self.bench, self.sent, self.calls = bench, [], []
        self.cycles, self.missed = 1, 0
        self._times = self._clock(stall_ns)
        operator = SimpleNamespace(
            update=lambda _: bench.orders,
            authority=ControlAuthority.POLICY,
            takeover=Takeover(None, RobotDecisions()),
        )
        history = SimpleNamespace(
            record=lambda *_: None, restart=lambda: self.calls.append('restart')
        )
        self.loop = ControlLoop(
            self,
            bench.controller,
            operator,
            StepInputs(history, lambda _: bench.sense()),
            self,
            listener=EdgeListener(),
            clock=lambda: next(self._times),
        )

    def _clock(self, stall_ns: int) -> Iterator[int]:
        yield self.bench.now_ns
        while True:
            yield self.bench.now_ns + stall_ns

    def wait(self, stop: threading.Event) -> bool:
        return not stop.is_set()

    def send_step(self, executed: object, control_step: int, is_old: Callable[[], bool]) -> bool:
        if is_old():
            return False
        self.sent.append(executed)
        return True

    def send_command(self, command: np.ndarray) -> bool:
        self.sent.append(command.tolist())
        return True

    def call_stop_service(self, reason: str) -> None:
        self.calls.append(reason)


@pytest.mark.parametrize(('stall_ns', 'sent'), [(SILENCE_NS, 1), (SILENCE_NS + 1, 0)])
def test_a_command_that_the_process_stood_still_with_is_not_sent(stall_ns, sent):
    stalled = Stalled(known(), stall_ns)
    stalled.loop.run_step()
    assert len(stalled.sent) == sent


def test_the_history_begins_again_after_a_gap():
    bench = known()
    bench.now_ns += SILENCE_NS
    stalled = Stalled(bench, 0)
    stalled.loop.run_step()
    assert (stalled.calls, stalled.sent) == (['restart'], [])


@pytest.mark.parametrize(('joints', 'rest'), [(1, [[0.0]]), (2, [])])
def test_the_last_command_of_a_process_that_stood_still_has_no_old_position(joints, rest):
    bench = known(wheels(joints))
    bench.queue.clear(ends_episode=False)
    bench.plan(*[[0.5] * joints] * 9)
    bench.commands(4)
    stalled = Stalled(bench, 0)
    bench.now_ns += SILENCE_NS
    stop = threading.Event()
    stop.set()
    stalled.loop.run(stop)
    assert stalled.sent == rest
