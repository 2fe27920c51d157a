# SPDX-License-Identifier: Apache-2.0
"""Which goals of RunEpisode begin and end a run, without an executor in between."""

from __future__ import annotations

import pytest

from lerobot_serve.edge.ros import run_episode_action
from lerobot_serve.edge.ros.run_episode_action import CANCELLED, RunEpisodeAction
from lerobot_serve_interfaces.action import RunEpisode


class Executor:
    """Is woken."""

    def wake(self) -> None:
        pass


class Timer:
    """Never due by itself."""

    def __init__(self) -> None:
        self.is_on = False

    def reset(self) -> None:
        self.is_on = True

    def cancel(self) -> None:
        self.is_on = False


class Node:
    """Has what the action asks of its node."""

    executor = Executor()

    @staticmethod
    def create_timer(period_s: float, callback: object, *, autostart: bool) -> Timer:
        assert period_s <= 0.1 and not autostart
        return Timer()


class Episodes:
    """Notes what is begun and cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.result: RunEpisode.Result | None = None

    def refusal(self, goal: RunEpisode.Goal) -> str:
        return 'another one runs' if self.begun else ''

    def begin(self, goal: RunEpisode.Goal) -> None:
        self.begun += 1

    def cancel(self) -> None:
        self.cancelled += 1

    def poll(self) -> RunEpisode.Result | None:
        return self.result

    def feedback(self) -> RunEpisode.Feedback:
        return RunEpisode.Feedback()


class Goal:
    """As the handle of a goal."""

    def __init__(self, *, is_cancel_requested: bool = False) -> None:
        self.request, self.is_cancel_requested = RunEpisode.Goal(), is_cancel_requested
        self.ends: list[str] = []

    def canceled(self) -> None:
        self.ends.append('canceled')

    def abort(self) -> None:
        self.ends.append('aborted')

    def publish_feedback(self, _: object) -> None:
        pass


@pytest.fixture
def episodes(monkeypatch) -> Episodes:
    monkeypatch.setattr(run_episode_action, 'SteadyClockActionServer', lambda *_, **__: None)
    return Episodes()


def execute(action: RunEpisodeAction, goal: Goal) -> RunEpisode.Result | None:
    """Return the result of a goal, None while it runs."""
    try:
        action._execute(goal).send(None)
    except StopIteration as end:
        return end.value
    return None


def test_a_goal_that_was_cancelled_before_it_began_does_not_begin(episodes):
    action, goal = RunEpisodeAction(Node, episodes), Goal()
    action._cancel(goal)
    goal.is_cancel_requested = True
    assert execute(action, goal).outcome == CANCELLED
    assert (episodes.begun, goal.ends) == (0, ['canceled'])


def test_a_cancel_of_a_goal_that_waits_does_not_end_the_one_that_runs(episodes):
    action, runs, waits = RunEpisodeAction(Node, episodes), Goal(), Goal()
    assert execute(action, runs) is None
    action._cancel(waits)
    assert episodes.cancelled == 0
    action._cancel(runs)
    assert (episodes.begun, episodes.cancelled) == (1, 1)


def test_a_run_is_polled_while_there_is_one(episodes):
    action = RunEpisodeAction(Node, episodes)
    assert not action._timer.is_on
    assert execute(action, Goal()) is None
    assert action._timer.is_on
    action.poll()
    assert action._timer.is_on
    episodes.result = RunEpisode.Result()
    action.poll()
    action.poll()
    assert not action._timer.is_on
