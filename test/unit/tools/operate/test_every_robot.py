# SPDX-License-Identifier: Apache-2.0
"""A verb on all robots: each is asked at once, none waits for another, and the status says all."""

from __future__ import annotations

from collections.abc import Callable
import itertools
import threading
from typing import Any

import pytest
from support.tools.operator_states import robot_of

from lerobot_serve.errors import UserError
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.names import natural_order
from lerobot_serve.tools.operate.outcome import ResultUnknown
from lerobot_serve.tools.operate.robots import (
    every_robot_rule,
    EVERY_VERBS,
    exit_status,
    pause_every_robot,
    resume_every_robot,
    RobotResult,
    summary,
)
from lerobot_serve.tools.operate.rule import Effect, RobotVerb

LIMIT_S = 20.0
HUNG = '/robot_1/edge_controller'


def node(number: int) -> str:
    return f'/robot_{number}/edge_controller'


class FleetOfRobots:
    """`HUNG` does not reply before all others have; `later` are found after the start."""

    operator = 'kim@lab'
    no_robot_text = 'no robot is found'

    def __init__(self, later: tuple[str, ...] = ()) -> None:
        self._later = later
        self.asked: list[str] = []
        self.others_are_done = threading.Event()

    def find_robot_nodes(self, on_found: Callable[[str], object]) -> list[str]:
        for each in self._later:
            on_found(each)
        return list(self._later)

    def trigger(self, node: str, service: str) -> tuple[bool, str]:
        self.asked.append(node)
        if node == HUNG:
            assert self.others_are_done.wait(LIMIT_S), 'it held up the others'
            raise ResultUnknown('no reply')
        return True, f'{service}d'

    def wait_for_robot(self, node: str, accepts: Any, timeout_s: float | None = None) -> Any:
        views = (robot_of(node, paused=paused) for paused in (True, False))
        return None if node == HUNG else next(filter(accepts, views))

    def control_slot(self, *_: object, **__: object) -> tuple[bool, str]:
        return True, ''


def test_a_robot_that_hangs_holds_up_no_other_and_one_found_late_is_paused_too():
    fleet = FleetOfRobots(later=(node(3), node(2), node(3)))
    reported: list[RobotResult] = []

    def report(result: RobotResult) -> None:
        reported.append(result)
        if len(reported) == 2:
            fleet.others_are_done.set()

    results = pause_every_robot(fleet, [HUNG, node(2)], 'fire', report)
    assert sorted(fleet.asked) == [HUNG, node(2), node(3)]
    assert reported[-1].node == HUNG and 'stop it at its power' in reported[-1].text
    assert [(r.name, r.exit_status) for r in results] == [
        ('robot_1', 3),
        ('robot_2', 0),
        ('robot_3', 0),
    ]
    assert exit_status(results) == 4
    assert summary(RobotVerb.PAUSE, results) == 'pause: 2 of 3 robots confirm it; not robot_1'


def test_without_a_robot_nothing_is_called_done():
    with pytest.raises(UserError, match='no robot is found'):
        pause_every_robot(FleetOfRobots(), [], '', lambda _: None)


def test_only_paused_robots_are_resumed_and_a_silent_one_is_refused():
    robots = [
        robot_of(node(2), paused=True),
        robot_of(node(10)),
        fleet_state.silent(robot_of(node(3)), fleet_state.MISSING, 20.0),
    ]
    fleet = FleetOfRobots()
    results = resume_every_robot(fleet, robots, '', lambda _: None)
    assert fleet.asked == [node(2)]
    # in the order in which people count
    assert [(r.name, r.exit_status) for r in results] == [
        ('robot_2', 0),
        ('robot_3', 1),
        ('robot_10', 0),
    ]
    assert 'silent' in results[1].text and exit_status(results) == 4


@pytest.mark.parametrize('statuses', itertools.product((0, 1, 3), repeat=3))
def test_every_mixture_of_results_has_a_status(statuses):
    results = [RobotResult(str(n), str(n), status, '') for n, status in enumerate(statuses)]
    wanted = 0 if not any(statuses) else 4 if 0 in statuses else 3 if 3 in statuses else 1
    assert exit_status(results) == wanted


@pytest.mark.parametrize('verb', EVERY_VERBS)
@pytest.mark.parametrize('paused', itertools.product((True, False), repeat=2))
def test_a_pause_asks_nothing_and_a_resume_names_the_robots(verb, paused):
    robots = [robot_of(node(n), paused=each) for n, each in zip((10, 2), paused, strict=True)]
    rule = every_robot_rule(verb, robots)
    if verb is RobotVerb.PAUSE:
        # whatever the states are, since they may be old
        assert (rule.effect, rule.asks) == (Effect.DO, False)
    elif any(paused):
        named = ', '.join(n for n, p in (('robot_2', paused[1]), ('robot_10', paused[0])) if p)
        assert rule.text == f'end the pause of {named}: they may move at once' and rule.asks
    else:
        assert rule.effect is Effect.NOTHING


def test_the_sentence_of_a_resume_names_each_of_many_robots():
    robots = [robot_of(node(n), paused=True) for n in range(40)]
    text = every_robot_rule(RobotVerb.RESUME, robots).text
    assert set(text.removeprefix('end the pause of ').partition(':')[0].split(', ')) == {
        f'robot_{n}' for n in range(40)
    }


def test_names_are_ordered_as_people_count():
    names = ['robot_10', 'robot_2', 'arm', 'robot_1', 'robot_2b', '7']
    ordered = ['7', 'arm', 'robot_1', 'robot_2', 'robot_2b', 'robot_10']
    assert sorted(names, key=natural_order) == sorted(ordered, key=natural_order)
    assert sorted(names, key=natural_order)[-4:] == ['robot_1', 'robot_2', 'robot_2b', 'robot_10']


@pytest.mark.parametrize(
    'words',
    [
        ('--all',),
        ('--all', 'reset'),
        ('take-over', '--all'),
        ('--all', 'robot_1', 'pause'),
        ('robot_1', 'pause', '--all'),
    ],
)
def test_all_takes_a_pause_or_a_resume_and_no_name(words, capsys):
    assert main(['robot', *words]) == 2
    assert 'lerobot-serve robot --all pause' in capsys.readouterr().err
