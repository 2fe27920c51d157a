# SPDX-License-Identifier: Apache-2.0
"""One thing is spoiled in a clean trace: the audit names that check, that file, that line only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
import json

import numpy as np
import pytest
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
from lerobot_serve.cage.description import Interlock
from lerobot_serve.cage.result import LastCommand
from lerobot_serve.tools.audit.engine import CheckStatus, run_audit

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
