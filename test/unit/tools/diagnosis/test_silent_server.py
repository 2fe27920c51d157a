# SPDX-License-Identifier: Apache-2.0
"""
A router hears nothing of its server. What the server's own trace tells says why: a link is cut on
the way there or back, the server did not run, it was killed, it is slow; or nothing can be said.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.tools.diagnosis_rig import BOOTED_S, ROUGH_S, Scene, scene, STALL_S, STILL_S

from lerobot_serve.tools.diagnosis.diagnose import diagnose, RuleResult
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.records import Record, RecordIds

# what the router answers, and after which time [s]
WAITED = 'no reply within 0.4 s', 0.4
KNEW = 'zenoh:/server: server unavailable; slot b: share is 0', 0.003
DRAINED = 'running episodes leave it: drained; slot b: zenoh:/b: server unavailable', 0.003
FELL_SILENT = (WAITED, KNEW)
USUAL = {'queue_wait_ms': 2.0, 'processing_ms': 1.0, 'inference_ms': 40.0}
# later than the router waits, not than the edge does
LATE = USUAL | {'inference_ms': 600.0}
# state of the server -> the cause, where the robot kept its session and where it lost it
CAUSES = {
    'ran': ('request_lost', 'request_lost'),
    'stood still': ('server_stopped', 'server_stopped'),
    'killed': ('session_lost', 'session_lost'),
    # of these the trace of the server tells nothing: what the router and the edge did is said
    'ended': ('router', 'session_lost'),
    'lost records': ('router', 'session_lost'),
    'no trace': ('router', 'session_lost'),
}


def refused(answer: tuple[str, float], *, loses_session: bool) -> Scene:
    """Return a scene in which the router answers the requests of a while, or the only one."""
    made = scene('request_lost')
    lost = [r for r in made.told['robot_1'] if r.get('status') == 'timed_out']
    made.told['robot_1'] = [r for r in made.told['robot_1'] if r not in lost]
    text, after_s = answer
    for record in lost[:1] if loses_session else lost:
        refuse(made, record, f'no eligible slot (slot prod: {text}); repair a slot', after_s)
        record['status'] = 'no_session' if loses_session else 'no_slot'
    if loses_session:
        for time_s, after in ((ROUGH_S[0] + after_s + 0.02, 'reconnecting'), (STALL_S[1], 'ok')):
            change = records.StateRecord(
                0, *RecordIds('robot_1').fields(), component='connection', before='', after=after
            )
            made.add('robot_1', time_s, change)
    return made


def refuse(made: Scene, record: Record, reason: str, after_s: float) -> None:
    """Change a request of the edge that timed out after a second to one that was refused."""
    end_s = record['mono_ns'] / 1e9 - 1.0 + after_s
    record |= {'reason': reason, 'round_trip_ms': after_s * 1e3}
    record |= dict.fromkeys(USUAL, 0.0)
    made.add('robot_1', end_s, record)
    made.add('router', end_s, dict(record))


def serve(made: Scene, parts: dict[str, float]) -> None:
    """The server has served the requests that the router refused."""
    for record in [r for r in made.told['robot_1'] if 'slot prod' in r.get('reason', '')]:
        ids = RecordIds('robot_1', record['session_epoch'], record['seq'])
        end_s = record['mono_ns'] / 1e9 - (record['round_trip_ms'] - sum(parts.values())) / 1e3
        made.add('server', end_s, records.RequestRecord(0, *ids.fields(), status='ok', **parts))


def write(made: Scene, folder: Path, server: str) -> None:
    """Write the scene with a server of that state."""
    if server == 'stood still':
        noted = records.StateRecord(
            0,
            component='process',
            before='still',
            after='runs',
            reason=f'{STILL_S[1] - STILL_S[0]} s',
        )
        made.add('server', STILL_S[1], noted)
    end_ns = (ROUGH_S[0] + BOOTED_S['server']) * 1e9
    if server in ('killed', 'ended'):
        made.told['server'] = [r for r in made.told['server'] if r['mono_ns'] < end_ns]
    if server == 'no trace':
        del made.told['server']
    for told in made.told.values():
        told.sort(key=lambda record: record['mono_ns'])
    made.write(folder)
    if server in ('killed', 'ended', 'lost records'):
        file = folder / 'server.jsonl'
        *lines, _ = file.read_bytes().splitlines(keepends=True)
        lost = {'trace_failed': 3} if server == 'lost records' else {}
        closed = records.FooterRecord(
            int(end_ns), records=0, records_lost=lost, end_reason='closed'
        )
        file.write_bytes(b''.join([*lines, *[encode(closed)] * (server != 'killed')]))


def first_cause(made: Scene, folder: Path, server: str = 'ran') -> RuleResult:
    write(made, folder, server)
    return diagnose([folder], 'robot_1').causes[0]


@pytest.mark.parametrize('server', CAUSES)
@pytest.mark.parametrize('loses_session', [False, True])
@pytest.mark.parametrize('answer', FELL_SILENT)
def test_why_a_server_is_silent_is_in_its_trace(answer, loses_session, server, tmp_path):
    made = refused(answer, loses_session=loses_session)
    assert first_cause(made, tmp_path, server).rule.name == CAUSES[server][loses_session]


@pytest.mark.parametrize('server', CAUSES)
@pytest.mark.parametrize('loses_session', [False, True])
def test_a_slot_that_was_drained_is_no_link_that_is_cut(loses_session, server, tmp_path):
    made = refused(DRAINED, loses_session=loses_session)
    own = 'session_lost' if loses_session else 'router'
    wanted = 'server_stopped' if server == 'stood still' else own
    assert first_cause(made, tmp_path, server).rule.name == wanted


@pytest.mark.parametrize('loses_session', [False, True])
def test_a_reply_that_the_router_did_not_hear_was_lost(loses_session, tmp_path):
    made = refused(WAITED, loses_session=loses_session)
    serve(made, USUAL)
    found = first_cause(made, tmp_path)
    assert found.rule.name == 'reply_lost'
    assert 'accepted by edge or router' in found.evidence


def test_an_abandoned_request_was_not_on_its_way_for_its_whole_time_limit(tmp_path):
    made = refused(WAITED, loses_session=False)
    ids = RecordIds('robot_1', 3, 1000)
    made.add(
        'robot_1', STALL_S[1] + 0.7, records.RequestRecord(0, *ids.fields(), status='abandoned')
    )
    made.add(
        'server', STALL_S[1] + 0.7, records.RequestRecord(0, *ids.fields(), status='ok', **LATE)
    )
    assert first_cause(made, tmp_path).rule.name == 'request_lost'


def test_a_reply_that_came_when_the_router_waited_no_longer_was_late(tmp_path):
    made = refused(WAITED, loses_session=False)
    serve(made, LATE)
    assert first_cause(made, tmp_path).rule.name == 'policy_slow'
    results = {result.rule.name: result for result in diagnose([tmp_path], 'robot_1').results}
    assert results['reply_lost'].evidence.startswith('0 replies in time of the server')
    assert 'no record of 0 of them' in results['request_lost'].evidence
