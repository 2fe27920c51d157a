# SPDX-License-Identifier: Apache-2.0
"""What the demo reads from traces after a run, and what it notes while the router changes."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import pytest
from support.tools.operator_states import canary_of, changed, router_of, SLOT_NAMES, slot_of

from lerobot_serve.demo.results.run_records import (
    add_entry,
    audit_traces,
    longest_gaps_ms,
    PlayedAction,
    read_records,
    RunRecords,
)
from lerobot_serve.demo.results.scoreboard import PHASE_MARKS, router_events
from lerobot_serve.router.canary.states import CanaryPhase, ON_TRIAL
from lerobot_serve.tools.operate.fleet_state import RouterView
from lerobot_serve.tools.traces.fields import record_of
from lerobot_serve.tools.traces.trace_run import TraceEntry


def added(*records: tuple[float, str, dict]) -> RunRecords:
    found = RunRecords()
    for time_s, role, raw in records:
        add_entry(found, TraceEntry(time_s, SimpleNamespace(role=role), record_of(raw)))
    return found


def test_records_become_lines_over_time():
    found = added(
        (1.0, 'edge', executed('policy', 0.2)),
        # the ladder executes no action of a policy
        (1.1, 'edge', executed('hold', 9.0)),
        (1.2, 'edge', {'kind': 'request', 'policy': 'v1@1', 'round_trip_ms': 12.5}),
        # without a reply
        (1.3, 'edge', {'kind': 'request', 'policy': '', 'round_trip_ms': 1.0}),
        # the router's round trip to the server is not that of a robot
        (1.4, 'router', {'kind': 'request', 'policy': 'v1@1', 'round_trip_ms': 3.0}),
        (1.5, 'router', {'kind': 'shadow', 'divergence': 0.04}),
        (2.0, 'router', {'kind': 'canary', 'event': 'started', 'share_percent': 25}),
        (3.0, 'router', {'kind': 'canary', 'event': 'rolled_back', 'share_percent': 0}),
        (4.0, 'server', {'kind': 'request', 'policy': 'v1@1', 'round_trip_ms': 3.0}),
    )
    assert found.actions == {'robot_1': [PlayedAction(1.0, 'e1', 0.2)]}
    assert found.round_trips_ms == {'v1@1': [(1.2, 12.5)]}
    assert found.divergences == [(1.5, 0.04)]
    # two points at one time draw a step
    assert found.shares == [(2.0, 0.0), (2.0, 25.0), (3.0, 25.0), (3.0, 0.0)]


def executed(rung: str, age_s: float) -> dict:
    return {
        'kind': 'executed',
        'client_id': 'robot_1',
        'episode_id': 'e1',
        'rung': rung,
        'age_s': age_s,
    }


def test_a_wait_between_two_episodes_is_none_within_one():
    played = ((5.0, 'a'), (5.1, 'a'), (6.6, 'b'), (6.9, 'b'), (7.0, 'b'), (99.0, 'b'))
    robot = [PlayedAction(time_s, episode, 0.5) for time_s, episode in played]
    other = [PlayedAction(time_s, 'c', 0.5) for time_s in (5.0, 5.2)]
    found = longest_gaps_ms([robot, other], 5.0, 10.0)
    assert found == (pytest.approx(300), pytest.approx(1500))
    assert longest_gaps_ms([robot], 5.0, 6.0) == (pytest.approx(100), 0.0)
    assert longest_gaps_ms([], 0.0, 1.0) == (0.0, 0.0)


def test_without_traces_there_is_nothing(tmp_path):
    assert read_records(tmp_path / 'none') == RunRecords()
    assert audit_traces(tmp_path / 'none') == {}
    (tmp_path / 'some').mkdir()
    (tmp_path / 'some' / 'torn.jsonl').write_text('{"kind":')
    found = audit_traces(tmp_path / 'some')
    assert found.get('violations') is None or found['outcome'] != 'holds'


STATE = router_of('/r', slots=(slot_of('a'), slot_of('b')))


def marks(before: RouterView, after: RouterView) -> list[str]:
    return [mark for _, mark in router_events(before, after)]


@pytest.mark.parametrize(('old', 'new'), product(CanaryPhase, CanaryPhase))
def test_each_change_of_phase_that_decides_is_marked_once(old, new):
    before = changed(STATE, canary=canary_of(old, share_percent=5))
    after = changed(STATE, canary=canary_of(new, share_percent=5, text='why'))
    if old is new:
        wanted = []
    elif new in PHASE_MARKS:
        wanted = [PHASE_MARKS[new]]
    elif new in ON_TRIAL and old not in ON_TRIAL:
        wanted = ['5 %']
    else:
        wanted = []
    assert marks(before, after) == wanted


def test_the_next_step_is_marked_with_its_share():
    before = changed(STATE, canary=canary_of(CanaryPhase.UNDECIDED, step=0, share_percent=25))
    after = changed(STATE, canary=canary_of(CanaryPhase.RUNNING, step=1, share_percent=50))
    assert marks(before, after) == ['50 %']


@pytest.mark.parametrize(('old', 'new'), product(SLOT_NAMES, SLOT_NAMES))
def test_a_drain_and_its_end_are_marked(old, new):
    before, after = (
        changed(STATE, slots=(slot_of('a'), slot_of('b', state=state))) for state in (old, new)
    )
    wanted = []
    if old != new and new == 'DRAINED':
        wanted = ['b drained']
    elif old != new and old == 'DRAINED':
        wanted = ['b restored']
    assert marks(before, after) == wanted


def test_a_slot_that_appears_is_no_event():
    assert marks(router_of('/r'), changed(STATE, slots=(slot_of('b', state='DRAINED'),))) == []
