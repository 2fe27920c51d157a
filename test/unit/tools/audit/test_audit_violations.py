# SPDX-License-Identifier: Apache-2.0
"""A clean trace is never accused; of a spoiled one the check, the file and the line are named."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.edge.cage_rig import robots
from support.tools.audit_rig import (
    accusations,
    Drive,
    drive,
    LIMITS,
    MAX_AGE_S,
    of_driving,
    POLICY,
    result_of,
    STEP_S,
)

from lerobot_serve.cage.cage import Cage
from lerobot_serve.cage.description import Interlock, LastCommand
from lerobot_serve.tools.audit.check import CHECKS, ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit
from lerobot_serve.trace.format.run_files import TraceError

# a drive in whose first episode nothing moves, and whose sessions have several requests
SEED = 4
# what was spoiled, as node and index of the record that the audit is to name
Spoiled = tuple[str, int]
Spoil = Callable[[Drive], Spoiled]


def played(spoiled: Drive, number: int = 3) -> int:
    return spoiled.index('edge', 'executed', number, rung='policy', cage_result='pass')


def change(number: int = 3, **fields: object) -> Spoil:
    """Return what gives a played row other fields; None removes one."""

    def spoil(spoiled: Drive) -> Spoiled:
        index = played(spoiled, number)
        spoiled.edge[index].update(fields)
        for name in [name for name, value in fields.items() if value is None]:
            del spoiled.edge[index][name]
        return 'edge', index

    return spoil


def command(*caged: float, tick: int | None = None) -> Spoil:
    """Return what gives the last command of all other numbers, within the words of the cage."""

    def spoil(spoiled: Drive) -> Spoiled:
        index = spoiled.index('edge', 'executed', -1)
        record = spoiled.edge[index]
        record |= {
            'commanded': list(caged),
            'cage_result': 'clamped',
            'control_step': tick or record['control_step'],
        }
        return 'edge', index

    return spoil


def too_far(spoiled: Drive) -> Spoiled:
    index = spoiled.index('edge', 'executed', -1)
    before, record = (spoiled.edge[i] for i in (index - 1, index))
    assert record['control_step'] == before['control_step'] + 1
    pan, *others = before['commanded']
    # less than max_step, more than max_velocity allows in a step
    record['commanded'] = [pan - 0.18 if pan > 0 else pan + 0.18, *others]
    record['cage_result'] = 'clamped'
    return 'edge', index


def other_numbers_of_the_same_row(spoiled: Drive) -> Spoiled:
    index = played(spoiled)
    again = dict(spoiled.edge[index])
    again |= {'raw': [0.0, 0.0, 0.0], 'cage_result': 'clamped'}
    spoiled.edge.insert(index + 1, again)
    return 'edge', index + 1


def second_row(spoiled: Drive) -> int:
    """Return a row that follows on a row of the same request."""
    return next(
        index
        for index, (before, record) in enumerate(pairwise(spoiled.edge), 1)
        if 'chunk_row' in before
        and record.get('chunk_row', 0) > before['chunk_row']
        and record['seq'] == before['seq'] > 1
    )


def behind(**less: int) -> Spoil:
    """Return what lowers numbers of a row that follows on another one."""

    def spoil(spoiled: Drive) -> Spoiled:
        index = second_row(spoiled)
        for name, by in less.items():
            spoiled.edge[index][name] -= by
        return 'edge', index

    return spoil


def other_slot(node: str, kind: str) -> Spoil:
    def spoil(spoiled: Drive) -> Spoiled:
        index = spoiled.index(node, kind, 1, **({'rung': 'policy'} if kind == 'executed' else {}))
        record = getattr(spoiled, node)[index]
        where = record['routing'] if kind == 'request' else record
        where['slot'] = 'ba'['ab'.index(where['slot'])]
        return node, index

    return spoil


def another_decision(spoiled: Drive) -> Spoiled:
    first = spoiled.router[0]
    spoiled.router.insert(1, first | {'slot': 'ba'['ab'.index(first['slot'])]})
    return 'router', 1


def a_robot_of_another_opinion(spoiled: Drive) -> Spoiled:
    episode_id = spoiled.router[0]['episode_id']
    for record in spoiled.edge:
        if record.get('episode_id') == episode_id:
            where = record['routing'] if record['kind'] == 'request' else record
            if 'slot' in where:
                where['slot'] = 'ba'['ab'.index(where['slot'])]
    return 'edge', spoiled.index('edge', 'request')


def second_request(spoiled: Drive) -> int:
    return spoiled.index('edge', 'request', 0, seq=2)


def two_in_flight(spoiled: Drive) -> Spoiled:
    before, index = spoiled.index('edge', 'request', 0, seq=1), second_request(spoiled)
    between_ns = spoiled.edge[index]['mono_ns'] - spoiled.edge[before]['mono_ns']
    spoiled.edge[index]['round_trip_ms'] = between_ns / 1e6 + 0.01
    return 'edge', index


def foreign_prefix(node: str) -> Spoil:
    def spoil(spoiled: Drive) -> Spoiled:
        index = spoiled.index(node, 'request', 0, status='ok')
        record = getattr(spoiled, node)[index]
        foreign = POLICY['ba'['ab'.index(record['routing']['slot'])]]
        record |= {'prefix_policy': foreign, 'prefix_ignored': False}
        return node, index

    return spoil


def no_end(spoiled: Drive) -> Spoiled:
    index = second_request(spoiled)
    del spoiled.edge[index]
    return 'edge', spoiled.index('edge', 'request', 0, seq=3)


VIOLATIONS: dict[str, tuple[str, Spoil]] = {
    'too old': ('age', change(age_s=MAX_AGE_S + 0.001)),
    'of no age': ('age', change(age_s=None)),
    'from the future': ('age', change(age_s=-0.5)),
    'not finite': ('finite', command(float('nan'), 0.0, 0.0)),
    'without numbers': ('finite', command()),
    'too high': ('position', command(1.01, 0.0, 0.0, tick=10_000)),
    'too low': ('position', command(0.0, -0.51, 0.0, tick=10_000)),
    'too fast': ('position', command(0.0, 0.0, 2.01, tick=10_000)),
    'of another robot': ('position', command(0.0, 0.0, tick=10_000)),
    'a jump': ('step', too_far),
    'passed and changed': ('rows', change(raw=[0.0, 0.0, 0.0])),
    'passed and not sent': ('rows', change(raw=None)),
    'from nowhere': ('rows', change(chunk_row=None)),
    'a row that changes': ('rows', other_numbers_of_the_same_row),
    'a row that falls': ('rows', behind(chunk_row=9)),
    'a chunk that returns': ('rows', behind(seq=1)),
    'a session that returns': ('rows', behind(session_epoch=1)),
    'another slot played': ('sticky', other_slot('edge', 'executed')),
    'another slot asked': ('sticky', other_slot('edge', 'request')),
    'another slot answered': ('sticky', other_slot('router', 'request')),
    'decided twice': ('sticky', another_decision),
    'edge and router disagree': ('sticky', a_robot_of_another_opinion),
    'two in flight': ('one_in_flight', two_in_flight),
    'foreign prefix at the edge': ('prefix', foreign_prefix('edge')),
    'foreign prefix at the router': ('prefix', foreign_prefix('router')),
    'no end': ('ended', no_end),
}


@pytest.mark.parametrize('name', VIOLATIONS)
def test_what_was_spoiled_is_named_and_nothing_else(tmp_path, name):
    check, spoil = VIOLATIONS[name]
    spoiled = drive(SEED)
    spoiled.write(tmp_path / 'clean')
    assert accusations(run_audit([tmp_path / 'clean'])) == []
    node, index = spoil(spoiled)
    edge, router = spoiled.write(tmp_path / 'spoiled')
    found = run_audit([tmp_path / 'spoiled'])
    assert accusations(found) == [(check, str({'edge': edge, 'router': router}[node]), index + 2)]
    assert found.outcome is CheckStatus.VIOLATED
    others = {r.outcome for r in of_driving(found) if r.check != check}
    assert others == {CheckStatus.HOLDS}


def test_all_are_counted_and_few_are_shown(tmp_path):
    spoiled = drive(SEED)
    old = [record for record in spoiled.edge if 'age_s' in record]
    for record in old:
        record['age_s'] = 9.0
    spoiled.write(tmp_path)
    for show in (0, 2, 1000):
        result = result_of(run_audit([tmp_path], show=show), 'age')
        assert (result.violations, len(result.shown)) == (len(old), min(show, len(old)))


def test_without_a_router_an_edge_that_changes_slots_is_not_accused(tmp_path):
    spoiled = drive(SEED)
    other_slot('edge', 'executed')(spoiled)
    edge, _ = spoiled.write(tmp_path)
    result = result_of(run_audit([edge]), 'sticky')
    assert result.outcome is CheckStatus.NOT_JUDGED
    assert 'no router trace' in result.why_not


def test_a_robot_that_stood_outside_may_come_back_but_not_go_further(tmp_path):
    def executed(tick: int, pan: float) -> dict:
        return {
            'kind': 'executed',
            'mono_ns': tick,
            'control_step': tick,
            'commanded': [pan, 0.0, 0.0],
        }

    spoiled = drive(SEED)
    spoiled.edge = [executed(tick, pan) for tick, pan in enumerate((1.2, 1.15, 1.15, 1.16, 1.0))]
    edge, _ = spoiled.write(tmp_path)
    assert accusations(run_audit([tmp_path])) == [
        ('position', str(edge), 2),
        ('position', str(edge), 5),
    ]


@pytest.mark.parametrize('is_immediate', [True, False])
@pytest.mark.parametrize(
    'wanted',
    [[0.0, 0.0, 0.0], [np.nan, 0.0, 0.0], [0.0, 0.0, 2.0], [9.0, 0.0, 2.0]],
    ids=['clamped', 'held', 'passed', 'another clamped'],
)
def test_only_an_immediate_interlock_may_exceed_a_step(tmp_path, wanted, is_immediate):
    interlock = Interlock('near', 'distance', 0.5, None, {'drive': 2.0}, immediate=True)
    cage = Cage(LIMITS, (interlock,), ('distance',), step_s=STEP_S, latch_after_trips=0)
    last = LastCommand(np.zeros(3), np.zeros(3))
    forced = cage.judge(np.array(wanted), last, measured=np.zeros(3), state=np.array([0.1]))
    reasons = ('', forced.reason, 'near forces drive')
    spoiled = drive(SEED)
    limits = json.loads(spoiled.parameters['limits'])
    spoiled.parameters['limits'] = json.dumps(limits | {'immediate': ['drive'] * is_immediate})
    spoiled.edge = [
        {
            'kind': 'executed',
            'mono_ns': tick,
            'control_step': tick,
            'commanded': [0.0, 0.0, 2.0 * (tick % 2)],
            'reason': reasons[tick],
        }
        for tick in range(3)
    ]
    spoiled.write(tmp_path)
    assert forced.command[2] == 2.0
    assert len(accusations(run_audit([tmp_path]))) == (0 if is_immediate else 2)


def outcomes(folder: Path) -> dict[str, CheckStatus]:
    return {result.check: result.outcome for result in run_audit([folder]).results}


def test_a_clean_fleet_holds_in_all_checks(tmp_path):
    for number in range(3):
        drive(number, client=f'robot_{number}', episodes=6).write(tmp_path / str(number))
    found = run_audit([tmp_path])
    assert accusations(found) == []
    assert {result.check: result.outcome for result in of_driving(found)} == dict.fromkeys(
        set(CHECKS) - ROLLOUT_CHECKS, CheckStatus.HOLDS
    )
    assert found.outcome is CheckStatus.HOLDS
    assert (found.episodes, found.joined) == (18, 18)


@given(
    seed=st.integers(0, 2**32),
    episodes=st.integers(1, 5),
    requests=st.integers(1, 5),
    rows=st.integers(1, 6),
    part_bytes=st.sampled_from([4096, 1 << 20]),
    limits=robots() | st.just(LIMITS),
)
@settings(max_examples=25, deadline=None)
def test_no_clean_trace_is_accused(seed, episodes, requests, rows, part_bytes, limits):
    clean = drive(seed, episodes=episodes, requests=requests, rows=rows, limits=limits)
    with TemporaryDirectory() as folder:
        clean.write(Path(folder), limit_bytes=part_bytes)
        found = run_audit([folder])
    assert accusations(found) == []


def test_a_trace_that_tells_nothing_is_not_judged(tmp_path):
    clean = drive()
    clean.edge, clean.router = [], []
    clean.write(tmp_path)
    found = run_audit([tmp_path])
    judged = {r.check for r in found.results if r.outcome is not CheckStatus.NOT_JUDGED}
    assert judged == {'whole', 'drops'}
    assert all(result.why_not for result in found.results if result.check not in judged)
    assert found.outcome is CheckStatus.NOT_JUDGED


@pytest.mark.parametrize(
    ('parameter', 'checks'),
    [('max_action_age_s', {'age'}), ('limits', {'position', 'step'})],
)
def test_without_a_bound_what_it_bounds_is_not_judged(tmp_path, parameter, checks):
    clean = drive(1)
    del clean.parameters[parameter]
    clean.write(tmp_path)
    found = run_audit([tmp_path])
    assert {r.check for r in of_driving(found) if r.outcome is CheckStatus.NOT_JUDGED} == checks
    assert all(parameter in r.why_not for r in found.results if r.check in checks)
    assert found.outcome is CheckStatus.HOLDS_AS_RECORDED


@pytest.mark.parametrize('limits', ['no json', '[]', '{}', 7, {'step_s': 1, 'actions': [3]}])
def test_limits_that_make_no_sense_are_no_limits(tmp_path, limits):
    clean = drive(1)
    clean.parameters['limits'] = limits
    clean.write(tmp_path)
    assert outcomes(tmp_path)['position'] is CheckStatus.NOT_JUDGED


def test_limits_may_be_an_object(tmp_path):
    clean = drive(1)
    clean.parameters['limits'] = {'step_s': 1, 'actions': [{'motion': 'position'}] * 3}
    clean.write(tmp_path)
    assert outcomes(tmp_path)['position'] is CheckStatus.HOLDS


def test_an_edge_without_limits_beside_one_with_is_not_passed_over(tmp_path):
    drive(1).write(tmp_path / '1')
    other = drive(2, client='robot_2')
    del other.parameters['limits']
    other.write(tmp_path / '2')
    result = result_of(run_audit([tmp_path]), 'position')
    assert (result.outcome, result.judged_runs, result.runs) == (
        CheckStatus.HOLDS_AS_RECORDED,
        1,
        2,
    )


def test_when_the_oldest_parts_are_gone_it_holds_for_what_was_recorded(tmp_path):
    drive(3, episodes=20).write(tmp_path, limit_bytes=4096, keep_files=3)
    found = outcomes(tmp_path)
    assert set(found.values()) == {CheckStatus.HOLDS_AS_RECORDED, CheckStatus.NOT_JUDGED}
    assert found['drops'] is CheckStatus.NOT_JUDGED
    assert found['rows'] is CheckStatus.HOLDS_AS_RECORDED


def test_the_bound_may_be_changed_while_the_node_runs(tmp_path):
    clean = drive(1)
    age_s = max(record.get('age_s', 0) for record in clean.edge)
    change = {'kind': 'parameter', 'mono_ns': 0, 'name': 'max_action_age_s', 'new': age_s / 2}
    clean.write(tmp_path / 'before')
    clean.edge.insert(0, change)
    clean.write(tmp_path / 'after')
    assert outcomes(tmp_path / 'before')['age'] is CheckStatus.HOLDS
    assert outcomes(tmp_path / 'after')['age'] is CheckStatus.VIOLATED


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(TraceError, match='name files'):
        run_audit([tmp_path])
    with pytest.raises(TraceError, match='name files'):
        run_audit([tmp_path / 'missing.jsonl'])
    (tmp_path / 'notes.jsonl').write_text('no trace\n')
    with pytest.raises(TraceError, match='not a trace'):
        run_audit([tmp_path])


def test_with_interpolation_not_everything_of_rows_is_judged(tmp_path):
    clean = drive(1)
    clean.parameters['interpolation_multiplier'] = 2
    clean.write(tmp_path)
    result = result_of(run_audit([tmp_path]), 'rows')
    assert result.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert 'interpolation' in result.why_not
