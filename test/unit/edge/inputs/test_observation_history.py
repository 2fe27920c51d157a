# SPDX-License-Identifier: Apache-2.0
"""The history: rows stand exactly as far apart as asked, within one episode and without a gap."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st
import pytest

from lerobot_serve.edge.inputs.history import ObservationHistory
from lerobot_serve.edge.inputs.latest import InputsNotReady, LatestInputs

STEP_NS = 10
MAX_AGE_NS = 3 * STEP_NS


class Robot:
    """A history with one camera, whose frame is the time of its arrival, and a clock in steps."""

    def __init__(self, steps: int = 3, stride_steps: int = 2) -> None:
        self.inputs = LatestInputs({'front': MAX_AGE_NS})
        self.history = ObservationHistory(self.inputs)
        self.history.require(steps, stride_steps)
        self.step = 0

    @property
    def now_ns(self) -> int:
        return self.step * STEP_NS

    def arrive(self) -> None:
        self.inputs.deposit('front', self.step, self.now_ns)

    def live(self, steps: int = 1, *, frames: bool = True) -> None:
        """Let control steps pass, with a new frame in each or without."""
        for _ in range(steps):
            self.step += 1
            if frames:
                self.arrive()
            self.history.record(self.step, self.now_ns)

    def taken(self) -> list[tuple[int, int]]:
        """Return the frames of a request and how far back they claim to be."""
        moments = self.history.take(self.now_ns)
        return [(moment.snapshot.values['front'], moment.steps_back) for moment in moments]


def test_a_frame_between_two_steps_waits_for_the_next_one():
    robot = Robot(steps=2, stride_steps=1)
    robot.live(4)
    robot.inputs.deposit('front', 4.5, robot.now_ns + 5)
    assert robot.taken() == [(3, 1), (4, 0)]
    robot.live(frames=False)
    assert robot.taken() == [(4, 1), (4.5, 0)]


def test_an_episode_knows_nothing_of_the_one_before():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(8)
    robot.history.restart()
    robot.live(2)
    assert robot.taken() == [(9, 2), (9, 1), (10, 0)]
    assert robot.history.gaps == 0


def test_a_stale_input_is_a_gap_behind_which_the_history_begins_anew():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(4, frames=False)
    assert robot.history.gaps == 0
    robot.live(5)
    robot.live(6, frames=False)
    with pytest.raises(InputsNotReady, match='front is'):
        robot.taken()
    assert robot.history.gaps == 1
    robot.live(2)
    assert robot.taken() == [(16, 2), (16, 1), (17, 0)]
    assert robot.history.gaps == 1


def test_a_control_step_that_was_missed_is_a_gap():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(5)
    robot.step += 1
    robot.live(2)
    assert robot.taken() == [(7, 2), (7, 1), (8, 0)]
    assert robot.history.gaps == 1


def test_another_session_keeps_what_is_known_of_the_episode():
    robot = Robot(steps=2, stride_steps=2)
    robot.live(9)
    robot.history.require(3, 1)
    assert robot.taken() == [(7, 2), (8, 1), (9, 0)]
    robot.history.require(1, 1)
    assert robot.taken() == [(9, 0)]
    robot.live(3)
    robot.history.require(2, 1)
    robot.live()
    assert robot.taken() == [(13, 1), (13, 0)]
    assert robot.history.gaps == 0


class Frame:
    """Something that can be seen to be gone."""


@pytest.mark.parametrize(
    ('steps', 'stride_steps', 'kept'), [(1, 1, 1), (1, 7, 1), (2, 1, 2), (3, 4, 9), (5, 1, 5)]
)
def test_no_more_is_kept_than_is_asked_for(steps, stride_steps, kept):
    robot, alive = Robot(steps, stride_steps), weakref.WeakSet()
    for _ in range(20):
        frame = Frame()
        alive.add(frame)
        robot.inputs.deposit('front', frame, robot.now_ns + STEP_NS)
        robot.live(frames=False)
    del frame
    assert len(alive) == kept


def test_one_observation_is_the_newest_of_everything():
    robot = Robot(steps=1)
    robot.live(3)
    robot.inputs.deposit('front', 'later', robot.now_ns + 1)
    assert robot.taken() == [('later', 0)]


class Naive:
    """All that was ever lived, one entry a control step; None where there was nothing to see."""

    def __init__(self) -> None:
        self.lived: list[int | None] = []
        self.frame: int | None = None
        self.missed = 0

    def live(self, now_ns: int) -> None:
        # steps that were missed are known as such when the next one comes
        self.lived += [None] * self.missed + [self.fresh(now_ns)]
        self.missed = 0

    def fresh(self, now_ns: int) -> int | None:
        stale = self.frame is None or now_ns - self.frame * STEP_NS > MAX_AGE_NS
        return None if stale else self.frame

    def rows(self, steps: int, stride_steps: int) -> list[tuple[int, int]]:
        """Look back from the newest step for as long as there is no gap."""
        unbroken: list[int] = []
        for frame in reversed(self.lived):
            if frame is None:
                break
            unbroken.append(frame)
        unbroken = unbroken or [self.frame]
        backs = [stride_steps * row for row in reversed(range(steps))]
        return [(unbroken[min(back, len(unbroken) - 1)], back) for back in backs]


EVENTS = ('frame and step',) * 4 + ('step', 'step', 'frame', 'missed', 'restart', 'take')


@given(st.integers(2, 5), st.integers(1, 4), st.lists(st.sampled_from(EVENTS), max_size=60))
def test_no_script_makes_a_row_that_was_not_lived_just_then(steps, stride_steps, script):
    robot, naive = Robot(steps, stride_steps), Naive()
    for event in (*script, 'take'):
        if event.startswith('frame'):
            naive.frame = robot.step + ('step' in event)
        if event == 'frame':
            robot.arrive()
        elif event == 'missed':
            robot.step += 1
            naive.missed += 1
        elif event == 'restart':
            robot.history.restart()
            naive.lived.clear()
        elif event.endswith('step'):
            robot.live(frames='frame' in event)
            naive.live(robot.now_ns)
        elif naive.fresh(robot.now_ns) is None:
            with pytest.raises(InputsNotReady):
                robot.taken()
        else:
            assert robot.taken() == naive.rows(steps, stride_steps)
