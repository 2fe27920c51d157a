# SPDX-License-Identifier: Apache-2.0
"""The decisions of a night, from traces."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import pytest
from support.paths import REPOSITORY
from support.time_zone import time_zone

from lerobot_serve.tools.cli import rollout_steps
from lerobot_serve.tools.cli.main import main
from lerobot_serve.tools.cli.rollout_steps import since_argument
from lerobot_serve.tools.operate.rollout.history import decision_text, history_report, read_history
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import CanaryRecord, fields_of, RecordIds, TraceRecord

INCIDENT = REPOSITORY / 'docs' / 'incidents' / 'stutter'
SECOND_NS = 10**9
NOBODY = RecordIds()


def trace(folder, role: str, *lines: TraceRecord) -> None:
    """Write a run of a node, with the header of a recorded one."""
    recorded = next((INCIDENT / 'policy_router').rglob('*.jsonl'))
    header = json.loads(recorded.read_text().splitlines()[0]) | {'role': role, 'node': f'/{role}'}
    header |= {'mono_ns': 0, 'wall_time': '1970-01-01T00:00:00.000Z'}
    folder.mkdir()
    text = '\n'.join(json.dumps(line) for line in (header, *map(fields_of, lines)))
    (folder / recorded.name).write_text(text + '\n')


def canary(at_ns: int, event: str, **fields) -> CanaryRecord:
    return CanaryRecord(at_ns, event=event, **fields)


def state(at_ns: int, component: str, before: str, after: str, reason='', ids=NOBODY):
    named = {'component': component, 'before': before, 'after': after, 'reason': reason}
    return records.StateRecord(at_ns, *ids.fields(), **named)


def parameter(at_ns: int, name: str, old, new, by: str) -> TraceRecord:
    return records.ParameterRecord(at_ns, name=name, old=old, new=new, by=by)


def command(at_ns: int, name: str, **fields) -> TraceRecord:
    return records.CommandRecord(at_ns, name=name, **fields)


def outcome(at_ns: int, ids: RecordIds, outcome: str, **fields) -> TraceRecord:
    return records.OutcomeRecord(at_ns, *ids.fields(), outcome=outcome, **fields)


def reported_outcome(at_ns: int, episode_id: str, outcome: str, **fields) -> TraceRecord:
    fields |= {'episode_id': episode_id, 'outcome': outcome}
    return records.ReportedOutcomeRecord(at_ns, **fields)


def written(folder) -> None:
    ids, later = (RecordIds('robot_1', 1, 1, name) for name in ('ep_1', 'ep_2'))
    trace(
        folder / 'router',
        'router',
        canary(100 * SECOND_NS, 'started', reason='step 1', share_percent=25),
        state(200 * SECOND_NS, 'slots', 'healthy', 'slot_b_drained', reason='service'),
        parameter(300 * SECOND_NS, 'split_percent', 75, 100, by='unknown, by parameter'),
    )
    trace(
        folder / 'edge',
        'edge',
        outcome(150 * SECOND_NS, ids, 'success', slot='a', policy='v1@1'),
        outcome(250 * SECOND_NS, later, 'failure', slot='b', policy='v2@2'),
        state(260 * SECOND_NS, 'connection', 'streaming', 'stalled'),
    )


def test_decisions_of_routers_and_outcomes_of_robots(tmp_path):
    written(tmp_path)
    found = read_history([tmp_path])
    assert [(each.time_s, each.what) for each in found.decisions] == [
        (100.0, 'rollout started, 25 % to slot b'),
        (200.0, 'slot b gets no new episodes'),
        (300.0, 'split_percent: 75 -> 100'),
    ]
    assert found.outcomes == {'v1@1': {'success': 1}, 'v2@2': {'failure': 1}}


@pytest.mark.parametrize(
    ('router', 'whats'),
    [
        (
            '/router',
            ['rollout started', 'slot b gets no new episodes', 'split_percent: 75 -> 100'],
        ),
        ('/other', []),
    ],
)
def test_a_watch_begins_with_the_decisions_of_its_router(tmp_path, monkeypatch, router, whats):
    written(tmp_path)
    monkeypatch.setattr(rollout_steps.time, 'time', lambda: 400.0)
    watch = SimpleNamespace(past=[])
    rollout_steps.add_past(watch, router, str(tmp_path))
    assert len(watch.past) == len(whats)
    assert all(what in line for what, line in zip(whats, watch.past, strict=True))
    for nowhere in ('', str(tmp_path / 'elsewhere'), str(tmp_path / 'router' / 'x')):
        rollout_steps.add_past(watch, router, nowhere)
    assert len(watch.past) == len(whats)


def test_only_what_came_since_a_time(tmp_path):
    written(tmp_path)
    found = read_history([tmp_path], since_s=200.0)
    assert [each.time_s for each in found.decisions] == [200.0, 300.0]
    assert found.outcomes == {'v2@2': {'failure': 1}}


def test_the_verb_reads_a_folder_without_ros(tmp_path, capsys):
    written(tmp_path)
    assert main(['rollout', 'history', str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert '/router  rollout started, 25 % to slot b: step 1' in out
    assert main(['rollout', 'history', str(tmp_path), '--hours', '1']) == 0
    assert capsys.readouterr().out == f'from {tmp_path}\nno decision\n'
    assert main(['rollout', 'history', str(tmp_path), '--since', '1970-01-03']) == 0
    assert capsys.readouterr().out == f'from {tmp_path}\nno decision\n'


def a_night(folder) -> None:
    """Write all that may happen in a night, by everybody who may do it."""
    ids = RecordIds('left', 1, 1, 'ep_1')

    def at(seconds: int) -> int:
        return seconds * SECOND_NS

    def placed(seconds: int, episode: str, slot: str, policy: str, *, moved: bool = False):
        return records.PlacementRecord(
            at(seconds),
            *RecordIds('left', 1, 1, episode).fields(),
            slot=slot,
            bucket=1,
            split_percent=75,
            moved=moved,
            routing_key=episode,
            missing_episode_id=False,
            sticky=False,
            server='/a',
            policy=policy,
            reason='',
        )

    trace(
        folder / 'router',
        'router',
        canary(at(10), 'restarted', reason='counts reset; new plan: 25, 100; by: kim@lab'
                       ': v2 is ready', share_percent=0),
        placed(11, 'ep_1', 'a', 'v1@1'),
        placed(12, 'ep_2', 'b', 'v2@2'),
        placed(13, 'ep_2', 'a', 'v1@1', moved=True),
        canary(at(20), 'promoted', reason='all; by an operator: kim@lab: sure',
                       share_percent=100),
        parameter(at(20), 'split_percent', 75, 0, by='the canary'),
        state(at(30), 'robot left', 'runs', 'cage latched', reason='slot b, v2@2'),
        canary(
            at(40),
            'rolled_back',
            reason='robots halted 2 times',
            policy='v2@2',
            share_percent=0,
        ),
        command(at(50), 'drain', slot='a', by='lee@desk: smoke', reason='no new ones'),
        state(at(51), 'slots', 'healthy', 'slot_a_drained', reason='smoke'),
        command(at(60), 'restore', slot='a', by='lee@desk: no smoke', reason='again'),
        command(at(61), 'rollout abort', slot='', by='x', reason='has an event'),
        command(at(65), 'note', slot='', by='lee@desk: pause left: cable', reason='ok'),
        canary(at(70), 'finished', reason='slot a serves v2@2; by: kim@lab: good'),
        parameter(at(80), 'split_percent', 0, 50, by='kim@lab: half'),
        parameter(at(81), 'canary.plan', [], ['25', '100'], by='unknown, by parameter'),
        reported_outcome(at(90), 'ep_1', 'success', slot='a', policy='v1@1'),
        reported_outcome(at(91), 'ep_1', 'success', slot='a', policy='v1@1'),
        reported_outcome(at(92), 'ep_2', 'failure', slot='b', policy='v2@2'),
    )  # fmt: skip
    trace(
        folder / 'edge',
        'edge',
        state(at(29), 'cage', 'active', 'latched', reason='joint 3'),
        state(at(35), 'connection', 'streaming', 'stalled'),
        state(at(36), 'connection', 'stalled', 'streaming'),
        state(at(37), 'connection', 'streaming', 'stalled'),
        # the same episode, without its policy
        outcome(at(95), ids, 'failure'),
        outcome(at(96), RecordIds('left', 1, 1, 'ep_9'), 'aborted'),
    )
    trace(
        folder / 'server',
        'server',
        state(at(45), 'server', 'active', 'error', reason='CUDA'),
        records.IncidentRecord(at(46), name='inference_failed', reason='CUDA'),
        state(at(47), 'session', 'closed', 'open', ids=ids),
    )


def nasty(folder) -> None:
    trace(
        folder / 'router',
        'router',
        canary(SECOND_NS, 'started', reason='a\x1b[2J\nforged line'),
        reported_outcome(SECOND_NS, 'e', 'success', slot='a', policy='v\x1b[1@1'),
    )


@pytest.mark.golden
def test_what_the_fleet_did_is_shown_as_agreed(golden, tmp_path):
    found = {}
    for write in (written, a_night, nasty):
        folder = tmp_path / write.__name__
        folder.mkdir()
        write(folder)
        found[write.__name__] = read_history([folder])
    with time_zone('UTC'):
        shown = {name: history_report(each, ['TRACES']) for name, each in found.items()}
        golden.holds_reports('rollout_history', shown)


@pytest.mark.parametrize(
    ('reason', 'why', 'by'),
    [
        ('by an operator: kim@lab: lunch', 'lunch', 'kim@lab'),
        ('step 2 of 3; by an operator: kim@lab: sure', 'step 2 of 3; sure', 'kim@lab'),
        # the reason of a guard that names an operator is not a decision of his
        ('slot b is drained by an operator: kim@lab: svc',) * 2 + ('',),
        ('new plan: 25, 100; by: unknown, by parameter', 'new plan: 25, 100',
         'unknown, by parameter'),
        ('', '', ''),
    ],
)  # fmt: skip
def test_who_made_a_decision_of_a_rollout(reason, why, by):
    record = canary(1, 'paused', reason=reason)
    assert decision_text(record) == ('rollout paused', why, by)


@pytest.mark.parametrize('given', ['soon', '25:00', '2026-13-01', ''])
def test_a_time_that_is_none_is_a_wrong_command_line(capsys, given):
    with pytest.raises(SystemExit) as raised:
        main(['rollout', 'history', '--since', given])
    assert raised.value.code == 2
    assert 'must be a local time' in capsys.readouterr().err


def test_a_time_of_day_is_the_last_one():
    assert 0 <= time.time() - since_argument('00:00') < 86_400 + 3600
    assert since_argument('2026-11-22T18:30') == time.mktime((2026, 11, 22, 18, 30, 0, 0, 0, -1))


def test_a_folder_without_traces_is_an_error(tmp_path, capsys):
    assert main(['rollout', 'history', str(tmp_path / 'none')]) == 1
    assert capsys.readouterr().err.count('\n') == 1
