"""The controller: no stale action, no command without an action, no jump after a pause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.edge.cage import Cage, Judgement, Verdict
from lerobot_serve.edge.commands import joint_trajectory
from lerobot_serve.edge.controller import Controller, Executed
from lerobot_serve.edge.queue import ActionQueue, Source
from lerobot_serve.edge.robot import ActionLimit, load

MAX_AGE_NS = 100
LIMITS = (ActionLimit('pan.pos', 'pan', -1.0, 1.0, 0.1),)
HOME = np.array([0.0])


def source(captured_ns: int, seq: int = 1) -> Source:
    return Source(seq, 7, 0, 'episode', captured_ns, 'prod', 'fake@0')


class Bench:
    """A controller, its queue, and a robot that stands where `position` says."""

    def __init__(self, cage: Cage | None = None) -> None:
        self.queue = ActionQueue()
        self.controller = Controller(
            self.queue, cage or Cage(LIMITS), max_action_age_ns=MAX_AGE_NS
        )
        self.position: np.ndarray | None = HOME
        self.asked = 0

    def measure(self) -> np.ndarray | None:
        self.asked += 1
        return self.position

    def plan(self, *angles: float, captured_ns: int = 0, seq: int = 1) -> None:
        chunk = np.array(angles, np.float32)[:, None]
        self.queue.append(chunk, source(captured_ns, seq))

    def step(self, now_ns: int = 0) -> Executed | None:
        return self.controller.step(now_ns, self.measure)


def test_nothing_received_means_nothing_commanded():
    bench = Bench()
    assert [bench.step(now_ns) for now_ns in range(5)] == [None] * 5
    assert bench.asked == 0
    assert (bench.controller.actions_executed, bench.controller.stalls) == (0, 0)


def test_an_action_is_executed_with_its_source_and_age():
    bench = Bench()
    bench.plan(0.0625, captured_ns=30)
    executed = bench.step(90)
    assert executed.judgement.command.tolist() == [0.0625]
    assert (executed.planned.source.seq, executed.planned.row, executed.age_ns) == (1, 0, 60)
    assert bench.controller.age_ns == 60
    assert bench.controller.actions_executed == 1
    assert bench.controller.cage_trips == 0


@pytest.mark.parametrize(('now_ns', 'plays'), [(MAX_AGE_NS, True), (MAX_AGE_NS + 1, False)])
def test_the_bound_of_age_is_the_last_moment(now_ns, plays):
    bench = Bench()
    bench.plan(0.05)
    assert (bench.step(now_ns) is not None) == plays
    assert bench.controller.drops['stale_action'] == (not plays)


def test_stale_actions_are_dropped_counted_and_skipped():
    bench = Bench()
    bench.plan(0.01, 0.02, 0.03, seq=1)
    bench.plan(0.04, captured_ns=50, seq=2)
    assert bench.step(120).planned.source.seq == 2
    assert bench.controller.drops == {'stale_action': 3}


def test_a_clock_that_jumps_forward_stops_the_robot():
    bench = Bench()
    bench.plan(0.01, 0.02, 0.03)
    assert bench.step(1)
    assert bench.step(10**12) is None
    assert bench.controller.drops == {'stale_action': 2}
    assert bench.controller.stalls == 1


def test_between_two_steps_the_last_command_is_the_bound():
    bench = Bench()
    bench.plan(0.9, 0.9, 0.9)
    commands = [bench.step().judgement.command[0] for _ in range(3)]
    assert commands == pytest.approx([0.1, 0.2, 0.3])
    assert bench.asked == 1
    assert bench.controller.cage_trips == 3


def test_after_a_stall_the_measured_position_is_the_bound():
    bench = Bench()
    bench.plan(0.1)
    bench.step()
    assert bench.step() is None
    assert bench.step() is None
    assert bench.controller.stalls == 1
    bench.position = np.array([-0.5])
    bench.plan(0.1)
    assert bench.step().judgement.command == pytest.approx([-0.4])
    assert bench.asked == 2


def test_a_robot_that_is_nowhere_known_is_not_commanded_until_it_is():
    bench = Bench()
    bench.position = None
    bench.plan(0.9, 0.9)
    executed = bench.step()
    assert (executed.judgement.verdict, executed.judgement.command) == (Verdict.STOPPED, None)
    assert bench.controller.actions_executed == 0
    assert bench.controller.cage_trips == 1
    bench.position = np.array([0.5])
    assert bench.step().judgement.command == pytest.approx([0.6])


def test_a_held_action_repeats_the_last_command():
    bench = Bench()
    bench.plan(0.0625, np.nan, 0.125)
    assert [bench.step().judgement.command[0] for _ in range(3)] == [0.0625, 0.0625, 0.125]
    assert (bench.controller.actions_executed, bench.controller.cage_trips) == (3, 1)


@pytest.mark.parametrize(
    ('fps', 'seconds', 'nanoseconds'), [(30.0, 0, 33_333_333), (0.1, 10, 0), (0.8, 1, 250_000_000)]
)
def test_a_command_names_its_joints_and_is_due_at_the_next_step(
    repository: Path, fps, seconds, nanoseconds
):
    robot = load(repository / 'config' / 'robots' / 'sim_arm.yaml')
    told = joint_trajectory(np.arange(6) / 8, replace(robot, fps=fps))
    assert told.joint_names == [action.joint for action in robot.actions]
    (point,) = told.points
    assert list(point.positions) == [0.0, 0.125, 0.25, 0.375, 0.5, 0.625]
    due = point.time_from_start
    assert (due.sec, due.nanosec) == (seconds, nanoseconds)


class Watched(Cage):
    """Remembers what it let out."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.released: list[np.ndarray] = []

    def judge(self, wanted: np.ndarray, last: np.ndarray | None) -> Judgement:
        judgement = super().judge(wanted, last)
        self.released.append(judgement.command)
        return judgement


angles = st.floats(width=32)
events = st.one_of(
    st.tuples(st.just('chunk'), st.lists(angles, max_size=6), st.integers(0, 150)),
    st.tuples(st.just('replace'), st.lists(angles, max_size=6), st.integers(0, 150)),
    st.tuples(st.just('steps'), st.integers(1, 8)),
    st.tuples(st.just('jump'), st.integers(0, 300)),
    st.tuples(st.just('moved'), st.floats(-2, 2) | st.none()),
    st.just(('clear',)),
)


@given(st.lists(events, max_size=40))
def test_no_script_makes_it_play_what_is_stale_or_did_not_pass_the_cage(script):
    bench, now_ns, last = Bench(Watched()), 1000, None
    for event, *details in script:
        if event == 'jump':
            now_ns += details[0]
        elif event == 'moved':
            bench.position = None if details[0] is None else np.array([details[0]])
        elif event == 'clear':
            bench.queue.clear()
        elif event == 'chunk':
            bench.plan(*details[0], captured_ns=now_ns - details[1])
        elif event == 'replace':
            rows = np.array(details[0], np.float32)[:, None]
            captured = source(now_ns - details[1])
            bench.queue.replace(rows, captured, delay_rows=2, rows_taken=0)
        else:
            for _ in range(details[0]):
                now_ns += 10
                last = check_step(bench, now_ns, last)


def check_step(bench: Bench, now_ns: int, last: np.ndarray | None) -> np.ndarray | None:
    """Do one step; return the command that bounds the next one."""
    executed = bench.step(now_ns)
    if executed is None:
        assert bench.queue.rows_left == 0
        return None
    assert 0 <= executed.age_ns <= MAX_AGE_NS
    assert executed.age_ns == now_ns - executed.planned.source.captured_ns
    command = executed.judgement.command
    assert command is bench.controller._cage.released[-1]
    bound = bench.position if last is None else last
    if bound is None:
        assert command is None
    elif command is not None:
        assert abs(command[0] - bound[0]) <= 0.1 + 1e-9
    return last if command is None else command
