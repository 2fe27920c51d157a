# SPDX-License-Identifier: Apache-2.0
"""The order of the robots: every state and every rung."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
import re

import pytest
from support.tools.operator_states import changed, EDGE_NAMES, robot_of, RUNG_NAMES

from lerobot_serve.tools.operate import fleet_state
from lerobot_serve.tools.operate.commands import robot_rule
from lerobot_serve.tools.operate.fleet_state import RobotView, SILENT
from lerobot_serve.tools.operate.robots import (
    robots_report,
    SEVERITY,
    severity,
    worst_first,
)
from lerobot_serve.tools.operate.rule import Effect, RobotVerb

UNKNOWN = 'unknown (9)'
WORST_FIRST = (
    SILENT,
    'DEAD',
    UNKNOWN,
    'STALLED',
    'RECONNECTING',
    'CONNECTING',
    'DEGRADED',
    'STREAMING',
)


def robot(number: int = 1, state: str = 'STREAMING', **edge: object) -> RobotView:
    known = 'STREAMING' if state == SILENT else state
    found = robot_of(f'/robot_{number}/edge_controller', state=known, **edge)
    return replace(found, is_silent=state == SILENT)


def test_every_state_has_a_place():
    assert set(SEVERITY) == {SILENT, *EDGE_NAMES}
    found = worst_first(robot(state=state) for state in (*SEVERITY, UNKNOWN))
    assert tuple(each.state for each in found) == WORST_FIRST


@pytest.mark.parametrize('rung', RUNG_NAMES)
@pytest.mark.parametrize(('worse', 'better'), pairwise(WORST_FIRST))
def test_the_state_decides_within_a_rung(worse, better, rung):
    first, second = robot(state=worse, rung=rung), robot(state=better, rung=rung)
    assert worst_first([second, first]) == [first, second]


@pytest.mark.parametrize('rung', [rung for rung in RUNG_NAMES if rung != 'POLICY'])
def test_a_robot_off_its_policy_comes_before_one_on_it(rung):
    on, off = robot(1), robot(2, rung=rung)
    assert worst_first([on, off]) == [off, on]


@pytest.mark.parametrize('rung', ['STOP_SERVICE', 'NO_COMMAND'])
def test_a_stopped_robot_comes_first_unless_an_operator_paused_it(rung):
    stopped, stalled = robot(1, rung=rung), robot(2, state='STALLED')
    assert worst_first([stalled, stopped]) == [stopped, stalled]
    assert worst_first([stalled, changed(stopped, paused=True)])[0] == stalled


def test_equal_robots_are_ordered_by_stalls_and_then_by_name():
    quiet, other, stalls = robot(1), robot(2), robot(3, stalls=2)
    assert worst_first([other, stalls, quiet]) == [stalls, quiet, other]
    assert severity(quiet) != severity(other)


def test_the_table_has_a_line_for_each_robot_and_counts():
    robots = [robot(1), robot(2, state='DEAD', reason='x' * 200), robot(3, paused=True)]
    lines = robots_report(robots).as_text().splitlines()
    assert lines[0].split()[:3] == ['ROBOT', 'STATE', 'RUNG']
    assert [line.split()[0] for line in lines[1:-1]] == ['robot_2', 'robot_1', 'robot_3']
    assert lines[-1] == '3 robots: 1 DEAD, 1 STREAMING, 1 STREAMING (paused)'
    # the remedy stands at the end of a reason
    assert lines[1].endswith('  ' + 'x' * 200)
    assert [each['name'] for each in robots_report(robots).data['robots']] == [
        'robot_2',
        'robot_1',
        'robot_3',
    ]


def test_a_text_from_a_robot_forges_no_row():
    text = robots_report(
        [robot(reason='a\x1b[2J\nrobot_9  STREAMING', episode_id='e\r')]
    ).as_text()
    assert len(text.splitlines()) == 3
    assert '\x1b' not in text and '\r' not in text


def test_a_robot_that_only_an_operator_starts_again_says_so():
    stopped, paused = robot(rung='NO_COMMAND'), robot(rung='NO_COMMAND', paused=True)
    assert 'STREAMING (stopped)' in robots_report([stopped]).as_text()
    assert 'STREAMING (paused)' in robots_report([paused]).as_text()


HUNG = fleet_state.silent(
    robot(9, rung='STOP_SERVICE', queue_remaining_s=1.5, round_trip_ms=40.0),
    fleet_state.HUNG,
    25.0,
)


@pytest.mark.parametrize(
    ('silent', 'reason'),
    [
        (HUNG, 'silent for 25 s: sends no new state: it hangs or its link is cut'),
        (
            fleet_state.silent(RobotView('/robot_9/edge_controller'), fleet_state.MISSING, 600.0),
            'silent for 10 min: not found; it hangs, its link is cut, or it was stopped',
        ),
        (
            fleet_state.silent(RobotView('/robot_9/edge_controller'), fleet_state.MUTE),
            'silent: found, and sends no state: it hangs or its link is cut',
        ),
    ],
)
def test_a_silent_robot_comes_first_with_its_age_and_without_old_values(silent, reason):
    lines = robots_report([robot(1, rung='STOP_SERVICE'), silent]).as_text().splitlines()
    assert lines[1].split()[:2] == ['robot_9', 'SILENT']
    assert lines[1].endswith(reason) and lines[-1] == '2 robots: 1 SILENT, 1 STREAMING (stopped)'
    assert not re.search(r'1\.5 s|40 ms|stop_service', lines[1])
    (first, _) = robots_report([robot(1), silent]).data['robots']
    assert (first['state'], first['queue_remaining_s'], first['rung']) == (SILENT, None, None)
    assert first['age_s'] == silent.age_s


@pytest.mark.parametrize('verb', [v for v in RobotVerb if v is not RobotVerb.PAUSE])
def test_no_verb_that_may_start_motion_acts_on_a_silent_robot(verb):
    rule = robot_rule(verb, HUNG)
    assert rule.effect is Effect.REFUSE
    assert (
        rule.text.startswith('robot_9 is silent for 25 s') and 'Nothing was changed' in rule.text
    )
    assert robot_rule(verb, robot(9)).effect is not Effect.REFUSE


@pytest.mark.parametrize(
    'silent',
    [
        HUNG,
        changed(HUNG, paused=True),
        fleet_state.silent(RobotView('/robot_9/edge'), fleet_state.MUTE),
    ],
)
def test_a_pause_of_a_silent_robot_is_tried(silent):
    rule = robot_rule(RobotVerb.PAUSE, silent)
    assert (rule.effect, rule.asks) == (Effect.DO, False)
    assert rule.text == 'slow robot_9 down to rest and hold it there'
