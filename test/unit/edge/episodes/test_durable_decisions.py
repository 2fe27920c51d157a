# SPDX-License-Identifier: Apache-2.0
"""
Pause, takeover, latch and stop of a robot: a restart finds each, one service alone ends it, and
what the disk does to it is said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.edge.controller_rig import arm, GIVING_UP
from support.edge.operation_rig import DEAD, Robot

from lerobot_serve.edge.decisions import Decision, RobotDecisions
from lerobot_serve.edge.observability.reports import explain
from lerobot_serve.edge.robot.file_format import InterventionInput
from lerobot_serve.edge.session.pipeline import EpisodeRequest
from lerobot_serve.edge.takeover import PersonInput

ARM = InterventionInput('leader', 'sensor_msgs/JointState', 0.2)
# a leader arm that sends nothing
LEADER = PersonInput(arm(), ARM, None, count_dropped=lambda _: None)


@pytest.fixture
def home(tmp_path) -> Iterator[Callable[..., Robot]]:
    """Start the edge, again and again: each robot is one process on the same folder."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path = tmp_path, **settings: object) -> Robot:
            decisions = RobotDecisions(folder)
            decisions.start()
            stack.callback(decisions.close)
            return Robot(decisions=decisions, latch_after_trips=1, **settings)

        yield start


def latch(robot: Robot) -> None:
    robot.tick.plan(float('nan'))
    robot.live(1)
    assert robot.tick.controller.latched


def stop(robot: Robot) -> None:
    robot.tick.plan(0.0)
    robot.live(20)
    assert robot.tick.stops == 1


def give_up(robot: Robot) -> None:
    """A connection that is DEAD, with a teardown that is the stop service."""
    robot.tick.plan(0.0)
    robot.live(1)
    robot.lives_through(*DEAD)
    robot.live(20)
    assert robot.tick.stops == 1


# what is decided and by which act, what then is said of it, and the one service that ends it
DECIDED = {
    'paused': (Decision.PAUSED, lambda robot: robot.operation.pause(), 'paused'),
    'taken over': (
        Decision.TAKEN_OVER,
        lambda robot: robot.operation.take_over(),
        'taken over by a person',
    ),
    'latched': (Decision.LATCHED, latch, 'not finite; call ~/reset_cage'),
    'stopped': (Decision.STOPPED, stop, 'nothing to play'),
    'dead': (Decision.STOPPED, give_up, 'given up'),
}
SERVICES = {
    Decision.PAUSED: lambda robot: robot.operation.resume(),
    Decision.TAKEN_OVER: lambda robot: robot.operation.hand_back(),
    Decision.LATCHED: lambda robot: robot.operation.reset_cage(),
    Decision.STOPPED: lambda robot: robot.operation.reset(EpisodeRequest()),
}


def settings_of(name: str) -> dict[str, object]:
    ladder = {'ladder': GIVING_UP} if name == 'stopped' else {}
    return {'device': LEADER if name == 'taken over' else None, **ladder}


@pytest.mark.parametrize('name', DECIDED)
def test_a_restart_finds_what_was_decided_and_one_service_alone_ends_it(home, name):
    decision, decide, why = DECIDED[name]
    robot = home(**settings_of(name))
    decide(robot)
    assert robot.operation.decisions.settle(decision) == ''
    for _ in range(2):
        robot = home(**settings_of(name))
        robot.tick.plan(1.0, 1.0)
        assert robot.live(3) == [None] * 3
        assert robot.tick.stops == 0, 'it was called once'
        assert why in explain_of(robot)
        robot.operation.begin_episode(EpisodeRequest())
        for other in SERVICES:
            if other is not decision:
                SERVICES[other](robot)
        robot.tick.plan(1.0, 1.0)
        assert robot.live(2) == [None] * 2
    accepted, text = SERVICES[decision](robot)
    assert accepted
    assert 'restart' not in text
    # what the service has answered holds for a process that is killed at once
    for each in (robot, home(**settings_of(name))):
        each.tick.plan(2.0, 2.0)
        assert 2.0 in each.live(3)


def explain_of(robot: Robot) -> str:
    return explain(
        SimpleNamespace(
            requester=robot.requests.requester,
            controller=robot.tick.controller,
            operator=robot.operation,
        )
    )


@pytest.mark.parametrize('name', DECIDED)
def test_a_disk_that_fails_prevents_nothing_and_each_service_says_so(home, tmp_path, name):
    decision, decide, _ = DECIDED[name]
    (tmp_path / 'file').touch()
    robot = home(tmp_path / 'file', **settings_of(name))
    decide(robot)
    warning = robot.operation.decisions.settle(decision)
    assert warning == (
        f'A restart of the edge controller ends it: {tmp_path}/file/{decision.file} is not '
        'written (Not a directory)'
    )
    robot.tick.plan(1.0)
    assert robot.live(1) != [1.0]
    # nothing is there that a restart could find
    assert 'restart' not in SERVICES[decision](robot)[1]
    robot.operation.pause()
    assert 'A restart of the edge controller ends it' in robot.operation.pause()[1]


@pytest.mark.parametrize('name', DECIDED)
def test_a_lifting_that_is_not_on_the_disk_is_said(home, monkeypatch, name):
    decision, decide, _ = DECIDED[name]
    robot = home(**settings_of(name))
    decide(robot)
    assert robot.operation.decisions.settle(decision) == ''

    def refuse(_: Path) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr('lerobot_serve.edge.decisions._remove', refuse)
    _, text = SERVICES[decision](robot)
    assert f'After a restart of the edge controller it is {decision} again' in text
    assert not robot.operation.decisions.holds(decision)
    assert home(**settings_of(name)).operation.decisions.holds(decision)


def test_who_sees_a_latch_or_a_stop_finds_it_asked_for():
    """So a reset at that moment lifts it from the disk, too, and not only in the process."""
    seen: list[tuple[Decision, bool, bool]] = []

    class Watched(RobotDecisions):
        def decide(self, decision: Decision, reason: str = '') -> None:
            controller = robot.tick.controller
            seen.append((decision, controller.latched, controller.stopped))
            super().decide(decision, reason)

    robot = Robot(decisions=Watched(), latch_after_trips=1)
    latch(robot)
    robot = Robot(decisions=Watched(), ladder=GIVING_UP)
    stop(robot)
    assert seen == [(Decision.LATCHED, False, False), (Decision.STOPPED, False, False)]


def test_a_latch_right_after_a_reset_of_the_cage_stays(home):
    robot = home()
    latch(robot)
    for _ in range(20):
        assert robot.operation.reset_cage() == (True, 'Cage latch cleared')
        robot.tick.plan(float('nan'))
        latch(robot)
        assert robot.operation.decisions.settle(Decision.LATCHED) == ''
        assert home().tick.controller.latched


def test_a_stop_that_comes_while_a_reset_clears_the_one_before_stays(home, monkeypatch):
    robot = home(ladder=GIVING_UP)
    stop(robot)
    begin = robot.requests.requester.begin_episode

    def begin_and_stop(episode: EpisodeRequest) -> None:
        # the tick thread plays and falls back meanwhile
        begin(episode)
        robot.tick.plan(0.0)
        robot.live(20)

    monkeypatch.setattr(robot.requests.requester, 'begin_episode', begin_and_stop)
    accepted, text = robot.operation.reset(EpisodeRequest())
    assert (accepted, text.startswith('Stop cleared. Stop service called')) == (False, True)
    robot.operation.decisions.settle(Decision.STOPPED)
    assert home().tick.controller.stopped
