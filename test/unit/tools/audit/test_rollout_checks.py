# SPDX-License-Identifier: Apache-2.0
"""A policy drives only behind its gate; what moved episodes and sessions of a gateway may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
import json
from typing import Any

from msgspec import structs
import pytest
from support.tools.audit_rig import accusations, drive, executed, POLICY, result_of, write

from lerobot_serve.client.settings import CLIENT_PREFIX
from lerobot_serve.gateway.callers.caller import CLIENT_PREFIX as GATEWAY_PREFIX
from lerobot_serve.router.canary.gate_record import ADMITTED, ADMITTED_BEFORE, SAME_FILES
from lerobot_serve.tools.audit import rollouts
from lerobot_serve.tools.audit.command_limits import UNCAGED
from lerobot_serve.tools.audit.engine import AuditResult, CheckResult, CheckStatus, run_audit
from lerobot_serve.tools.audit.report import audit_report
from lerobot_serve.tools.audit.sticky_slots import StickySlotCheck, UNCOVERED
from lerobot_serve.tools.traces.trace_run import TraceRun
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.records import RecordIds, TraceRecord

V1, V2, V3 = 'reach@1111', 'reach@2222', 'other@3333'
SAME_AS_V2 = 'renamed@2222'
EVIDENCE = {
    'log10_not_worse': 2.5,
    'log10_level': 1.3,
    'candidate_successes': 2,
    'candidate_failures': 1,
    'champion_successes': 1,
    'champion_failures': 1,
}


def placed(policy: str, slot: str = 'b', number: int = 0) -> TraceRecord:
    ids = RecordIds('robot', 1, number, f'e{number}')
    return records.PlacementRecord(
        0, *ids.fields(), slot=slot, bucket=1, split_percent=50, moved=False, policy=policy
    )


def replied(policy: str) -> TraceRecord:
    routing = records.routing('b', routing_key='e', missing_episode_id=False, sticky=True)
    return records.RequestRecord(
        0, *RecordIds('robot', 1, 1, 'e').fields(), status='ok', routing=routing, policy=policy
    )


def gate(policy: str, result: str = 'passed') -> TraceRecord:
    return records.GateRecord(0, policy=policy, result=result, parent=V1, recordings='', reason='')


def event(name: str, share_percent: int | None = None, **evidence: float) -> TraceRecord:
    return records.CanaryRecord(
        0, event=name, reason='x', share_percent=share_percent, evidence=evidence or None
    )


def outcomes(*ends: tuple[str, str]) -> list[TraceRecord]:
    return [
        records.ReportedOutcomeRecord(
            0, episode_id=f'e{number}', outcome=end, slot=slot, policy=V1
        )
        for number, (slot, end) in enumerate(ends)
    ]


MEASURED = outcomes(
    ('b', 'success'), ('b', 'success'), ('b', 'failure'), ('a', 'success'), ('a', 'failure')
)
PROMOTE = records.CommandRecord(0, name='rollout promote', slot='', by='me', reason='x')


def judge(
    tmp_path: Any, check: str, made: Sequence[TraceRecord], **parameters: Any
) -> tuple[CheckResult, AuditResult]:
    write(tmp_path, 'router', 'router', list(made), parameters, 0)
    found = run_audit([tmp_path])
    return result_of(found, check), found


@pytest.mark.parametrize(
    ('made', 'lines'),
    [
        ([gate(V2), placed(V2), replied(V2)], []),
        ([gate(SAME_AS_V2), placed(V2)], []),
        ([gate(V2, 'overridden'), placed(V2)], []),
        ([gate(V2, 'same_files'), placed(V2)], []),
        # a router that starts during a trial says so with its first poll
        ([placed(V2), gate(V2, 'admitted_before'), placed(V2)], []),
        ([placed(V2), gate(V2), placed(V2)], [2]),
        ([gate(V2), placed(V2), placed(V3), replied(V3)], [4, 5]),
        ([gate(V2, 'held'), placed(V2)], [3]),
        ([placed(V1, slot='a', number=1), gate(V2), placed(V2)], []),
    ],
)
def test_a_policy_drives_in_slot_b_behind_its_gate(tmp_path, made, lines):
    result, found = judge(tmp_path, 'gated', made, gate_folder='/gates')
    assert [each.line for each in result.shown] == lines
    assert result.violations == len(lines)
    assert result.outcome is (CheckStatus.VIOLATED if lines else CheckStatus.HOLDS)
    assert (found.outcome is CheckStatus.VIOLATED) is bool(lines)


def test_all_ungated_records_are_counted(tmp_path):
    made = [placed(V2, number=number) for number in range(20)]
    result, _ = judge(tmp_path, 'gated', made, gate_folder='/gates')
    assert (result.violations, len(result.shown)) == (20, 5)


def test_without_a_gate_there_is_nothing_to_judge(tmp_path):
    result, _ = judge(tmp_path / 'none', 'gated', [placed(V2)], gate_folder='')
    assert result.outcome is CheckStatus.NOT_JUDGED
    assert result.why_not == rollouts.NO_GATE
    champion = [placed(V1, slot='a')]
    result, _ = judge(tmp_path / 'idle', 'gated', champion, gate_folder='/gates')
    assert result.outcome is CheckStatus.NOT_JUDGED
    assert result.why_not == rollouts.NONE_DROVE


BEGUN = [event('began'), event('started', 10)]


@pytest.mark.parametrize(
    ('made', 'lines'),
    [
        ([*BEGUN, *MEASURED, event('passed', 10, **EVIDENCE), event('promoted', 100)], []),
        # the comparison is passed in one step, and the last step ends later
        (
            [
                *BEGUN,
                *MEASURED,
                event('passed', 10, **EVIDENCE),
                event('promoted', 50),
                event('promoted', 100),
            ],
            [],
        ),
        ([*BEGUN, event('promoted', 100), PROMOTE], []),
        ([*BEGUN, event('promoted', 50), event('promoted', 100)], [5]),
        ([*BEGUN, event('promoted', 100), event('watched', 100), PROMOTE], [4]),
        # a comparison of before a new candidate counts for nothing
        (
            [
                *BEGUN,
                *MEASURED,
                event('passed', 10, **EVIDENCE),
                event('restarted', 0),
                event('promoted', 100),
            ],
            [11],
        ),
        ([*BEGUN, *MEASURED, event('passed', 10, **{**EVIDENCE, 'log10_not_worse': 1.2})], [9]),
        ([*BEGUN, *MEASURED, event('passed', 10)], [9]),
        ([*BEGUN, *MEASURED[1:], event('passed', 10, **EVIDENCE)], [8]),
        # outcomes of an earlier step
        ([event('began'), *MEASURED, event('started', 10), event('passed', **EVIDENCE)], [9] * 4),
    ],
)
def test_a_promotion_has_its_evidence_or_its_operator(tmp_path, made, lines):
    result, _ = judge(tmp_path, 'evidence', made)
    assert [each.line for each in result.shown] == lines
    assert (result.outcome is CheckStatus.VIOLATED) is bool(lines)


def test_a_canary_of_before_the_recorded_part_is_not_judged(tmp_path):
    result, _ = judge(tmp_path, 'evidence', [event('promoted', 100)])
    assert result.outcome is CheckStatus.NOT_JUDGED
    assert result.why_not == rollouts.STARTED_BEFORE
    passed = event('passed', 10, **EVIDENCE)
    result, _ = judge(tmp_path / 'other', 'evidence', [passed, event('promoted', 100)])
    assert result.outcome is CheckStatus.HOLDS


SITE = {'state_url': 'postgresql://fleet@hub/fleet', 'state_site': 'north'}
PASSED = event('passed', 10, **EVIDENCE)


def judge_site(tmp_path: Any, **made: Sequence[TraceRecord]) -> CheckResult:
    """Judge the traces of routers that share a state."""
    for node, content in made.items():
        write(tmp_path, node, 'router', list(content), SITE, 0)
    return result_of(run_audit([tmp_path]), 'evidence')


def test_outcomes_that_another_router_of_the_site_received_are_evidence(tmp_path):
    leader = [*BEGUN, *MEASURED[:2], PASSED, event('promoted', 100)]
    alone = judge_site(tmp_path, leader=leader)
    assert alone.outcome is CheckStatus.NOT_JUDGED
    assert alone.why_not == rollouts.OTHERS_MISSING
    # in any order: clocks of two machines are not compared
    assert judge_site(tmp_path, second=MEASURED[2:]).outcome is CheckStatus.HOLDS


def test_too_many_outcomes_are_none_of_the_site_either(tmp_path):
    leader = [*BEGUN, *MEASURED[:2], PASSED, event('promoted', 100)]
    result = judge_site(tmp_path, leader=leader, second=MEASURED[3:])
    assert result.outcome is CheckStatus.VIOLATED
    assert [each.text for each in result.shown] == ['candidate_failures is 1, and 0 are recorded']


def test_a_router_may_promote_what_another_one_has_compared(tmp_path):
    """The operator plans at one router; the other one leads, and ends."""
    planned = [event('planned', 0), event('promoted', 100)]
    assert judge_site(tmp_path, second=planned).outcome is CheckStatus.NOT_JUDGED
    leader = [*BEGUN, *MEASURED, PASSED]
    assert judge_site(tmp_path, leader=leader).outcome is CheckStatus.HOLDS


def test_a_comparison_of_another_policy_explains_no_promotion(tmp_path):
    planned = [
        structs.replace(event(name, share), policy=V2)
        for name, share in (('planned', 0), ('promoted', 100))
    ]
    leader = [*BEGUN, *MEASURED, structs.replace(PASSED, policy=V3)]
    result = judge_site(tmp_path, second=planned, leader=leader)
    assert result.outcome is CheckStatus.VIOLATED


def test_a_trace_that_lost_records_proves_no_promotion_wrong(tmp_path):
    lost = records.DropRecord(0, reason='trace_overflow', count=3, item='canary')
    result, found = judge(tmp_path, 'evidence', [*BEGUN, lost, event('promoted', 100)])
    assert result.outcome is CheckStatus.NOT_JUDGED
    assert result.why_not == rollouts.INCOMPLETE
    # the loss itself is not in the footer
    assert found.outcome is CheckStatus.VIOLATED


def test_a_fleet_without_a_rollout_is_judged_by_its_driving_alone(tmp_path):
    drive(1).write(tmp_path)
    found = run_audit([tmp_path])
    assert found.outcome is CheckStatus.HOLDS
    unjudged = {each.check for each in found.results if each.outcome is CheckStatus.NOT_JUDGED}
    assert unjudged == {'gated', 'evidence'}


def test_the_names_are_those_of_the_router():
    assert set(rollouts.ADMITTING) == {*ADMITTED, SAME_FILES}
    assert rollouts.ADMITTED_BEFORE == ADMITTED_BEFORE


MS = 1_000_000


def ids(seq: int) -> RecordIds:
    return RecordIds('robot_1', 3, seq, 'episode-1')


def decided(at_ms: int, seq: int, slot: str, *, moved: bool) -> TraceRecord:
    return records.PlacementRecord(
        at_ms * MS, *ids(seq).fields(), slot=slot, bucket=7, split_percent=50, moved=moved
    )


def asked(at_ms: int, seq: int, slot: str) -> TraceRecord:
    return records.RequestRecord(
        at_ms * MS,
        *ids(seq).fields(),
        status='ok',
        episode=1,
        routing=records.routing(slot),
        policy=POLICY[slot],
        round_trip_ms=1.0,
    )


def played(at_ms: int, seq: int, row: int, slot: str) -> TraceRecord:
    more = {'control_step': at_ms, 'chunk_row': row, 'age_s': 0.1, 'slot': slot}
    return executed(at_ms * MS, ids(seq), policy=POLICY[slot], **more)


ROUTER = [
    decided(10, 1, 'a', moved=False),
    asked(12, 1, 'a'),
    decided(30, 2, 'b', moved=True),
    asked(32, 2, 'b'),
]


def sticky(folder):
    found = run_audit([folder])
    return found, result_of(found, 'sticky')


def test_a_row_that_was_asked_for_before_the_move_may_be_played_after_it(tmp_path):
    edge = [
        asked(13, 1, 'a'),
        played(14, 1, 0, 'a'),
        asked(33, 2, 'b'),
        played(34, 1, 1, 'a'),
        played(36, 2, 0, 'b'),
    ]
    write(tmp_path, 'edge', 'edge', edge, {}, 0)
    write(tmp_path, 'router', 'router', ROUTER, {}, 0)
    found, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS
    assert not [each for each in accusations(found) if each[0] == 'sticky']


@pytest.mark.parametrize('seq', [2, 3])
def test_a_row_that_was_asked_for_after_the_move_is_of_the_new_slot(tmp_path, seq):
    router, edge = TraceRun(tmp_path / 'router.jsonl', 0), TraceRun(tmp_path / 'edge.jsonl', 1)
    router.role, edge.role = 'router', 'edge'
    seen = StickySlotCheck(show=5)
    for run, record in (
        (router, ROUTER[0]),
        (edge, asked(13, 1, 'a')),
        (router, ROUTER[2]),
        (edge, asked(33, 2, 'b')),
        (edge, played(34, 1, 1, 'a')),
        (edge, played(36, seq, 0, 'a')),
    ):
        seen.observe(run, record)
    seen.finish([router, edge])
    assert [tally.violations for tally in seen.tallies] == [0, 1]


def test_what_a_server_answers_for_a_trial_or_in_shadow_is_no_move(tmp_path):
    write(tmp_path, 'edge', 'edge', [asked(13, 1, 'a'), played(14, 1, 0, 'a')], {}, 0)
    write(tmp_path, 'router', 'router', ROUTER[:2], {}, 0)
    write(tmp_path, 'server_b', 'server', [asked(13, 1, 'b')], {}, 0)
    _, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS
    assert result.judged == 2


def test_an_episode_that_no_router_trace_has_is_not_accused(tmp_path):
    """The router was started again, and the trace of before is away."""
    edge = [asked(13, 1, 'a'), played(14, 1, 0, 'a'), asked(33, 2, 'b'), played(36, 2, 0, 'b')]
    other = [structs.replace(record, episode_id='episode-2') for record in ROUTER[:2]]
    write(tmp_path, 'edge', 'edge', edge, {}, 0)
    write(tmp_path, 'router', 'router', other, {}, 0)
    found, result = sticky(tmp_path)
    assert result.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert result.why_not == UNCOVERED
    assert not [each for each in accusations(found) if each[0] == 'sticky']


SENTENCE = '2 callers came through a gateway, without safety cage and fallback ladder'


def test_the_report_counts_sessions_without_a_cage_beside_those_of_robots(tmp_path):
    drive(1, client='robot_1').write(tmp_path / 'robot')
    for name in ('http/10.0.0.5:1', 'lerobot/10.0.0.6:1'):
        caller = drive(2, client=f'gateway/{name}')
        # no edge: the router alone records them
        write(tmp_path / name.partition('/')[0], 'router', 'router', caller.router, {}, 0)
    found = run_audit([tmp_path])
    assert found.outcome is CheckStatus.HOLDS
    assert found.uncaged.callers == 2
    sessions = found.uncaged.sessions
    assert sessions >= 2
    assert f'{sessions} sessions of {SENTENCE}' in audit_report(found).as_text()
    counts = audit_report(found).data['without_cage']
    assert json.loads(json.dumps(counts)) == {
        'callers': 2,
        'sessions': sessions,
        'through': 'a gateway',
    }


def test_callers_alone_are_no_proof_about_commands(tmp_path):
    caller = drive(3, client='gateway/http/10.0.0.5:1')
    write(tmp_path, 'router', 'router', caller.router, {}, 0)
    found = run_audit([tmp_path])
    outcomes = {result.check: result.outcome for result in found.results}
    assert outcomes['sticky'] is CheckStatus.HOLDS
    for check in ('age', 'finite', 'position', 'step', 'rows', 'one_in_flight', 'ended'):
        assert outcomes[check] is CheckStatus.NOT_JUDGED
    assert found.outcome is CheckStatus.HOLDS_AS_RECORDED
    assert 'not everything could be judged' in audit_report(found).as_text()


def test_robots_are_not_marked(tmp_path):
    drive(4, client='robot/gateway/1').write(tmp_path)
    found = run_audit([tmp_path])
    assert found.uncaged.text == ''
    assert 'gateway, without' not in audit_report(found).as_text()
    assert replace(found.uncaged, callers=1, sessions=1).text.startswith('1 session of 1 caller')


def test_a_python_client_is_named_as_what_its_sessions_came_through(tmp_path):
    for number, client in enumerate(('client/notebook', 'gateway/http/10.0.0.5:1')):
        caller = drive(number, client=client)
        write(tmp_path / str(number), 'router', 'router', caller.router, {}, 0)
    text = audit_report(run_audit([tmp_path])).as_text()
    assert '2 callers came through a gateway or the Python client, without safety cage' in text


def test_the_prefixes_are_those_that_callers_have():
    assert set(UNCAGED) == {GATEWAY_PREFIX, CLIENT_PREFIX}
