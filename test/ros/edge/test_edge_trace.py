# SPDX-License-Identifier: Apache-2.0
"""What an edge writes down while its server is killed, and what the audit says of it."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from support.network.ports import free_port
from support.nodes.edge_rig import EdgeRig, LIMIT_S, SHORT

from lerobot_serve.tools.audit.check import ROLLOUT_CHECKS
from lerobot_serve.tools.audit.engine import AuditResult, CheckStatus, run_audit
from lerobot_serve.tools.traces.reader import read_records
from lerobot_serve_interfaces.msg import EdgeState, EpisodeOutcome

# the policy continues no prefix
NO_EVIDENCE = {'prefix', *ROLLOUT_CHECKS}


def records(folder: Path) -> list[dict]:
    (file,) = folder.glob('*.jsonl')
    return [record for _, record in read_records(file)]


def of_kind(told: list[dict], kind: str) -> list[dict]:
    return [record for record in told if record['kind'] == kind]


def outcomes(found: AuditResult) -> dict[str, CheckStatus]:
    return {result.check: result.outcome for result in found.results}


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urlopen(f'http://127.0.0.1:{port}{path}', timeout=LIMIT_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def drive_through_a_kill(rig: EdgeRig, folder: Path) -> None:
    """Let a server be killed and come back under a robot that writes its trace."""
    server = rig.start_server(**SHORT)
    rig.start(trace_folder=folder, max_action_age_s=0.45, request_threshold_s=0.4, task='fold')
    rig.wait_for_play()
    rig.kill(server)
    rig.wait_for_rung(EdgeState.RUNG_HOLD)
    rig.start_server(**SHORT)
    rig.wait_for_play()


def test_a_run_with_outages_is_told_whole_and_holds_what_is_audited(edge_rig, tmp_path):
    folder = tmp_path / 'trace'
    drive_through_a_kill(edge_rig, folder)
    edge_rig.set(request_threshold_s=0.3)
    run = edge_rig.run(task='wash', episode_id='run-7')
    # the ladder names the episode, too
    edge_rig.wait(
        lambda: edge_rig.seen.played[-1].episode_id == 'run-7', 'actions of the run are executed'
    )
    edge_rig.judge(EpisodeOutcome.SUCCESS, 'run-7')
    run.result()
    edge_rig.wait_for_rung(EdgeState.RUNG_RAMP, EdgeState.RUNG_HOLD)
    edge_rig.stop(edge_rig.fleet.processes['edge_robot_1'])

    told = records(folder)
    found = run_audit([folder])
    expected = dict.fromkeys(outcomes(found), CheckStatus.HOLDS)
    expected |= dict.fromkeys(NO_EVIDENCE, CheckStatus.NOT_JUDGED)
    assert outcomes(found) == expected
    # what was seen on the topic stands in the trace, and so does what came of every request
    written = {(r['control_step'], r['cage_result'], r['rung']) for r in of_kind(told, 'executed')}
    verdicts, rungs = ('pass', 'clamped', 'held', 'stopped'), ('policy', 'ramp', 'hold')
    seen = edge_rig.seen.executed
    assert {(e.control_step, verdicts[e.cage_result], rungs[e.rung]) for e in seen} <= written
    requests = of_kind(told, 'request')
    numbers = [(r['session_epoch'], r['seq']) for r in requests]
    assert len(set(numbers)) == len(numbers) >= edge_rig.seen.last.requests_sent
    assert {'ok', 'timed_out'} <= {r['status'] for r in requests}
    assert {r['task'] for r in requests} == {'fold', 'wash'}
    assert {r['server'] for r in requests} == {'/policy_server'}
    # every drop that the state counts was written, however often it was told
    dropped: dict[str, int] = {}
    for record in of_kind(told, 'drop'):
        dropped[record['reason']] = dropped.get(record['reason'], 0) + record['count']
    assert all(dropped[reason] >= n for reason, n in edge_rig.seen.drops().items())
    states = [(r['component'], r['to']) for r in of_kind(told, 'state')]
    for step in ('streaming', 'reconnecting'):
        assert ('connection', step) in states
    assert states.index(('rung', 'ramp')) < states.index(('rung', 'hold'))
    assert ('control_authority', 'none') in states
    # the judge's word, and no other by the run that ends with it
    (outcome,) = of_kind(told, 'outcome')
    assert (outcome['episode_id'], outcome['outcome']) == ('run-7', 'success')
    # the first request may have had no answer on a busy machine
    assert {outcome['policy']} == {r['policy'] for r in requests if r['status'] == 'ok'}
    (change,) = of_kind(told, 'parameter')
    assert (change['name'], change['old'], change['new']) == ('request_threshold_s', 0.4, 0.3)
    assert of_kind(told, 'policies')
    assert {'stalled'} <= {r['name'] for r in of_kind(told, 'incident')}


def test_an_edge_that_is_killed_leaves_all_but_its_end(edge_rig, tmp_path):
    folder, port = tmp_path / 'trace', free_port()
    edge = edge_rig.start(trace_folder=folder, metrics_port=port)
    edge_rig.wait_for_ticks(1)
    assert page(port, '/readyz')[0] == 503
    server = edge_rig.start_server(**SHORT)
    edge_rig.wait_for_play(20)
    assert page(port, '/readyz') == (200, 'ready\n')
    lines = page(port, '/metrics')[1].splitlines()
    played = next(line for line in lines if line.startswith('lerobot_serve_edge_commands_total{'))
    assert float(played.rpartition(' ')[2]) >= 20
    edge_rig.run(max_duration_s=0.05, episode_id='run-8').result()
    seen = len(edge_rig.seen.executed)
    edge_rig.wait(lambda: of_kind(records(folder), 'outcome'), 'the outcome is written')
    edge_rig.wait(lambda: of_kind(records(folder), 'drop'), 'what was cleared is written')
    edge_rig.kill(edge)
    # it would wait for its reader, which is gone
    edge_rig.kill(server)

    told = records(folder)
    found = run_audit([folder])
    assert outcomes(found)['whole'] is CheckStatus.INCOMPLETE
    assert {
        check for check, outcome in outcomes(found).items() if outcome is CheckStatus.INCOMPLETE
    } == {'whole'}
    (outcome,) = of_kind(told, 'outcome')
    assert (outcome['episode_id'], outcome['outcome']) == ('run-8', 'aborted')
    # a line that is torn is the last, and what is missing was not yet written
    damaged = [index for index, record in enumerate(told) if record['kind'] == 'damaged']
    assert damaged in ([], [len(told) - 1])
    written = {record['control_step'] for record in of_kind(told, 'executed')}
    missing = {e.control_step for e in edge_rig.seen.executed[:seen]} - written
    assert written
    assert not missing or min(missing) > max(written)
